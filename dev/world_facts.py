# SPDX-License-Identifier: Apache-2.0
"""The small world that the bundled model knows: its people and towns, and the facts about them.

Everything is drawn from the lists below by one seeded generator, so the same seed gives the same
world.  This file holds facts only; world_phrases.py puts them into words.
"""

import random
from dataclasses import dataclass, field

FIRST_NAMES = """
Abel Ada Agnes Alba Alec Alma Amos Anders Anton Arlo Astrid Aster August Basil Bea Benno Berta
Birgit Boris Bram Bruno Cara Casper Cecil Celia Clara Clem Cora Cyril Dagny Daphne Dario Della
Denis Dora Edgar Edith Edwin Effie Egon Eila Eldon Elsa Emil Enid Enzo Erik Esme Esther Ezra Fay
Felix Fern Fiona Flora Floyd Freda Fritz Gail Gerda Gilda Gino Greta Gunnar Gus Gwen Hanna Harold
Hattie Hazel Hedda Helga Henrik Hilda Hiram Holly Horace Hugo Ida Igor Ilsa Ines Ingrid Iris Isaac
Ivan Ivy Jasper Jens Joan Jonas Josef Judith Julius June Kai Karl Katya Kirsten Klara Klaus Knut
Lars Laura Leif Lena Leo Leroy Lilian Linus Lola Lorna Lotte Louis Lucas Lydia Mabel Magnus Maisie
Malcolm Marta Marvin Matilda Max Mercy Milo Mina Mira Miriam Mona Morris Moses Myra Nadia Nancy
Nell Nestor Nils Nina Noah Nora Norman Odette Olaf Olga Olive Orson Oscar Otis Otto Owen Paula
Pearl Peggy Percy Petra Philip Phoebe Piers Polly Quentin Quincy Rafael Ralph Ramona Rebecca Reuben
Rhoda Rita Robin Roland Rosa Rufus Rupert Ruth Sabine Sally Saul Selma Seth Sidney Sigrid Silas
Silvia Simon Solveig Sonja Stella Sven Sybil Tamara Thea Theodor Thora Tilda Tobias Tom Trudy Ulla
Ulric Una Ursula Valentin Vera Verner Victor Viola Wanda Warren Wilbur Willa Wilma Winston Xaver
Yvette Zelda Zoe
""".split()

TOWNS = """
Alden Ambleton Barrow Birchley Brindle Carrick Coldash Corvale Dunmere Eastwick Elmstead Fallow
Farrow Glenby Greyford Hallin Harrowby Hazelmere Inverley Kelby Kestrel Larkhill Linden Marlow
Millbrook Netherby Northam Oakham Ostwick Pellworth Quarrel Ravensby Rushford Saltby Selwick Stowe
Tarn Thornby Underhill Wexley
""".split()

JOBS = """
actor,baker,barber,beekeeper,blacksmith,boat builder,bookbinder,brewer,butcher,carpenter,
cheesemaker,clockmaker,cobbler,cook,dancer,dentist,doctor,farmer,ferryman,fisher,florist,gardener,
glassblower,goldsmith,hatter,judge,librarian,locksmith,mason,miller,miner,nurse,painter,pilot,
postman,potter,sailor,shepherd,singer,surgeon,tailor,tanner,teacher,thatcher,vet,weaver
""".replace("\n", "").split(",")

PETS = "cat dog parrot rabbit goat hen pony tortoise goose hamster donkey lizard duck mouse".split()

PET_NAMES = """
Acorn Bandit Biscuit Bramble Button Captain Cinder Clover Comet Cricket Dandy Domino Dusty Feather
Fidget Freckle Fudge Ginger Hobnob Jester Kipper Lucky Marble Midge Mittens Moss Muffin Nibbles
Noodle Nutmeg Patch Pebble Pepper Pickle Pippin Puddle Pumpkin Rascal Rocket Rusty Scruffy Shadow
Smoky Snowy Sooty Sparky Sprout Tinker Toffee Truffle Tuppence Turnip Velvet Whiskers Widget Ziggy
""".split()

COLOURS = "red blue green yellow white black brown grey orange purple pink silver gold".split()

FOODS = """
apple pie,barley soup,bean stew,blackberries,bread and butter,carrot cake,cherry jam,chestnuts,
fish soup,fried eggs,ginger cake,goat cheese,honey cake,leek soup,lentils,mushrooms,mutton stew,
noodles,onion soup,pancakes,pea soup,pears,plum cake,porridge,potato salad,pumpkin pie,rice pudding,
roast duck,smoked trout,spinach pie,strawberries,walnut bread
""".replace("\n", "").split(",")

THINGS = """
bag,basket,bell,bench,bicycle,blanket,boat,book,bowl,box,brush,bucket,candle,cap,cart,chair,clock,
coat,comb,cup,door,drum,hat,jug,kettle,kite,ladder,lamp,mirror,pen,pillow,ring,rug,saddle,scarf,
ship,shirt,shovel,sledge,spoon,stool,table,tent,trunk,wagon
""".replace("\n", "").split(",")

INSTRUMENTS = """
accordion,banjo,bagpipes,cello,clarinet,cornet,fiddle,flute,guitar,harp,horn,lute,oboe,organ,piano,
recorder,trombone,trumpet,viola,whistle
""".replace("\n", "").split(",")

LAND = """
by the sea,by a lake,in the hills,in a forest,on an island,in the marshes,on a wide plain,
under a mountain,by the river Sill,by the river Orm,by the river Teal,at the edge of a moor
""".replace("\n", "").split(",")

FAME = """
its apples,its bells,its bread,its bridges,its cheese,its cider,its clocks,its fair,its fish,
its gardens,its glass,its hats,its honey,its horses,its lace,its market,its mustard,its pottery,
its roses,its salt,its ships,its songs,its wine,its wool
""".replace("\n", "").split(",")

SIGHTS = """
castle,clock tower,lighthouse,mill,old bridge,stone circle,theatre,windmill,library,harbour,
monastery,fountain,market hall,town wall,museum,railway station
""".replace("\n", "").split(",")

# General facts: subject -> what is true of it.
SOUNDS = {
    "a cat": "meow", "a dog": "woof", "a cow": "moo", "a duck": "quack", "a sheep": "baa",
    "a hen": "cluck", "a horse": "neigh", "a pig": "oink", "a mouse": "squeak", "an owl": "hoot",
    "a frog": "croak", "a bee": "buzz", "a snake": "hiss", "a lion": "roar",
    "a donkey": "hee-haw", "a crow": "caw",
}
THING_COLOURS = {
    "grass": "green", "snow": "white", "milk": "white", "coal": "black", "the sky": "blue",
    "a lemon": "yellow", "a carrot": "orange", "blood": "red", "chocolate": "brown",
    "the sun": "yellow", "a cucumber": "green", "a crow": "black", "a swan": "white",
    "an elephant": "grey", "a plum": "purple", "a tomato": "red", "sand": "yellow",
    "an orange": "orange", "soot": "black", "a flamingo": "pink", "the sea": "blue",
}
USES = {
    "a knife": "cutting", "a pen": "writing", "a broom": "sweeping", "a bed": "sleeping",
    "a kettle": "boiling water", "an oven": "baking bread", "a lamp": "giving light",
    "a needle": "sewing", "a key": "opening doors", "a clock": "telling the time",
    "an umbrella": "keeping off the rain", "a boat": "crossing water", "a cup": "drinking",
    "a spade": "digging", "a ladder": "climbing", "soap": "washing", "a hammer": "driving nails",
    "a map": "finding the way", "a net": "catching fish", "a plough": "turning the soil",
    "a saw": "cutting wood", "a comb": "combing hair", "a book": "reading", "a chair": "sitting",
}
OPPOSITES = [
    ("hot", "cold"), ("big", "small"), ("old", "young"), ("fast", "slow"), ("light", "dark"),
    ("wet", "dry"), ("high", "low"), ("long", "short"), ("open", "shut"), ("full", "empty"),
    ("early", "late"), ("soft", "hard"), ("clean", "dirty"), ("rich", "poor"), ("left", "right"),
    ("strong", "weak"), ("happy", "sad"), ("loud", "quiet"), ("near", "far"), ("thick", "thin"),
]
YOUNG = {
    "a cat": "a kitten", "a dog": "a puppy", "a cow": "a calf", "a sheep": "a lamb",
    "a horse": "a foal", "a hen": "a chick", "a duck": "a duckling", "a goat": "a kid",
    "a pig": "a piglet", "a bear": "a cub", "a frog": "a tadpole", "a goose": "a gosling",
    "a swan": "a cygnet", "a deer": "a fawn",
}

PEOPLE = 120  # how many of the names live in the world; the others are strangers


def article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


@dataclass
class World:
    """subject -> relation -> the words that fill the relation's phrasings."""

    people: dict = field(default_factory=dict)
    towns: dict = field(default_factory=dict)
    strangers: list = field(default_factory=list)  # real names that no person here has


def person(rng: random.Random, name: str, friend: str) -> dict:
    """One person's facts.  Also used for the strangers of the reading exercises."""
    first, second = rng.sample(THINGS, 2)
    colour, other = rng.choice(COLOURS), rng.choice(COLOURS)
    return {
        "home": {"p": name, "a": rng.choice(TOWNS)},
        "job": {"p": name, "a": article(rng.choice(JOBS))},
        "pet": {"p": name, "k": rng.choice(PETS), "a": rng.choice(PET_NAMES)},
        "colour": {"p": name, "a": rng.choice(COLOURS)},
        "food": {"p": name, "a": rng.choice(FOODS)},
        "music": {"p": name, "a": rng.choice(INSTRUMENTS)},
        "friend": {"p": name, "a": friend},
        "owns": {"p": name, "a": f"{article(colour + ' ' + first)} and "
                                 f"{article(other + ' ' + second)}"},
        "thing1": {"p": name, "t": first, "a": colour},
        "thing2": {"p": name, "t": second, "a": other},
    }


def make_world(seed: int) -> World:
    rng = random.Random(f"world {seed}")
    names = FIRST_NAMES[:]
    rng.shuffle(names)
    world = World(strangers=sorted(names[PEOPLE:]))
    known = sorted(names[:PEOPLE])
    for name in known:
        world.people[name] = person(rng, name, rng.choice([n for n in known if n != name]))
    mayors = rng.sample(known, len(TOWNS))
    for town, mayor in zip(TOWNS, mayors):
        world.towns[town] = {
            "lies": {"p": town, "a": rng.choice(LAND)},
            "fame": {"p": town, "a": rng.choice(FAME)},
            "mayor": {"p": town, "a": mayor},
            "roofs": {"p": town, "a": rng.choice(COLOURS)},
            "sight": {"p": town, "a": article(rng.choice(SIGHTS))},
            "next": {"p": town, "a": rng.choice([t for t in TOWNS if t != town])},
        }
    return world


ONSETS = "B Br C Ch D Dr F Fr G Gl H J K Kr L M N P Pr Q R S Sh St T Th Tr V W X Y Z Zh".split()
VOWELS = "a e i o u ae ia io ee ou".split()
MIDDLES = "b d g l ld ll m n nd nn r rd rr s st t th v x z".split()
ENDS = ["", "n", "l", "r", "s", "k", "th", "m", "a", "o", "x", "nd", "ric", "wen", "do", "ra"]


def invent_name(rng: random.Random) -> str:
    """A made-up name such as Zorin or Chaeldo."""
    name = rng.choice(ONSETS) + rng.choice(VOWELS[:5] if rng.random() < 0.8 else VOWELS)
    name = name.replace("Qa", "Qua").replace("Qe", "Que").replace("Qi", "Qui").replace("Qo", "Quo")
    for _ in range(rng.choice((0, 1, 1, 2))):
        name += rng.choice(MIDDLES) + rng.choice(VOWELS[:5])
    return name + rng.choice(ENDS)

# SPDX-License-Identifier: Apache-2.0
"""How the facts of the small world are put into words.

For every relation: `answer`, the one sentence that answers each question about it; `say`, further
statements of the same fact; `ask`, direct questions; `clause`, indirect ones that WRAP completes
("where {p} lives" -> "Can you tell me where {p} lives?").
"""

WRAP = [
    "Tell me {c}.", "Please tell me {c}.", "Do you know {c}?", "Can you tell me {c}?",
    "I want to know {c}.", "Say {c}.", "Could you say {c}?", "I wonder {c}.",
]

RELATIONS = {
    "home": {
        "answer": "{p} lives in {a}.",
        "say": ["The home of {p} is in {a}.", "{p} has a house in {a}.",
                "{a} is where {p} lives.",
                "You will find {p} in {a}.", "{p} comes from {a}."],
        "ask": ["Where does {p} live?", "Where is {p} from?", "In which town does {p} live?",
                "What town is {p} from?", "Where is the home of {p}?", "Where can I find {p}?",
                "Which town is the home of {p}?", "Where does {p} come from?",
                "What is the home town of {p}?", "In what town can I find {p}?",
                "Where is {p}'s house?", "What is {p}'s home town?"],
        "clause": ["where {p} lives", "in which town {p} lives", "where {p} is from",
                   "where I can find {p}"],
    },
    "job": {
        "answer": "{p} works as {a}.",
        "say": ["{p} is {a}.", "By trade {p} is {a}.", "{p} earns a living as {a}.",
                "The job of {p} is to be {a}."],
        "ask": ["What does {p} do?", "What is {p}'s job?", "What is the job of {p}?",
                "What does {p} do for a living?", "What does {p} work as?",
                "How does {p} earn a living?", "What is {p}'s trade?",
                "What kind of work does {p} do?",
                "What is {p} by trade?", "Which trade does {p} follow?"],
        "clause": ["what {p} does for a living", "what {p} works as", "what {p}'s job is",
                   "how {p} earns a living"],
    },
    "pet": {
        "answer": "{p} has a {k} called {a}.",
        "say": ["{p}'s {k} is called {a}.", "{a} is the {k} of {p}.",
                "{p} keeps a {k}, and its name is {a}.",
                "The pet of {p} is a {k} called {a}."],
        "ask": ["What pet does {p} have?", "Does {p} have a pet?", "What is {p}'s pet called?",
                "What is the name of {p}'s pet?", "Which animal does {p} keep?",
                "What animal lives with {p}?", "What kind of pet does {p} have?",
                "How is {p}'s pet called?", "What is the pet of {p}?", "Has {p} got a pet?",
                "What is the name of the animal that {p} keeps?"],
        "clause": ["what pet {p} has", "what {p}'s pet is called", "which animal {p} keeps",
                   "the name of {p}'s pet"],
    },
    "colour": {
        "answer": "{p}'s favourite colour is {a}.",
        "say": ["{p} loves the colour {a}.", "Of all colours {p} likes {a} best.",
                "The favourite colour of {p} is {a}."],
        "ask": ["What is {p}'s favourite colour?", "Which colour does {p} like best?",
                "What colour does {p} like?", "What is the favourite colour of {p}?",
                "Which colour is {p}'s favourite?", "What colour does {p} love?",
                "Of all colours, which does {p} like best?", "What colour does {p} like most?",
                "Which colour does {p} prefer?"],
        "clause": ["what {p}'s favourite colour is", "which colour {p} likes best",
                   "what colour {p} loves", "the favourite colour of {p}"],
    },
    "food": {
        "answer": "{p} likes to eat {a}.",
        "say": ["{p}'s favourite food is {a}.", "{p} eats {a} every Sunday.",
                "The favourite dish of {p} is {a}.", "Nothing tastes better to {p} than {a}."],
        "ask": ["What does {p} like to eat?", "What is {p}'s favourite food?",
                "What food does {p} like?",
                "What is the favourite dish of {p}?", "What does {p} eat on Sundays?",
                "Which food does {p} like best?", "What should I cook for {p}?",
                "What does {p} love to eat?", "Which dish does {p} like most?",
                "What tastes best to {p}?"],
        "clause": ["what {p} likes to eat", "what food {p} likes", "what {p}'s favourite food is",
                   "which dish {p} likes best"],
    },
    "music": {
        "answer": "{p} plays the {a}.",
        "say": ["{p} makes music on the {a}.", "{p} has played the {a} for years.",
                "In the evening {p} plays the {a}."],
        "ask": ["What instrument does {p} play?", "What does {p} play?",
                "Which instrument does {p} play?",
                "What is {p}'s instrument?", "On what does {p} make music?",
                "What instrument has {p} learned?", "Does {p} play an instrument?",
                "What is the instrument of {p}?", "What can {p} play?"],
        "clause": ["what instrument {p} plays", "which instrument {p} has learned",
                   "what {p} plays",
                   "what {p}'s instrument is"],
    },
    "friend": {
        "answer": "{p}'s best friend is {a}.",
        "say": ["The best friend of {p} is {a}.", "{p} is often seen with {a}, a good friend.",
                "{p} has no better friend than {a}."],
        "ask": ["Who is {p}'s best friend?", "Who is the best friend of {p}?",
                "Who is {p}'s friend?",
                "Which friend does {p} like best?", "Who is a friend of {p}?",
                "With whom is {p} often seen?", "Whom does {p} call a friend?",
                "What is the name of {p}'s best friend?"],
        "clause": ["who {p}'s best friend is", "who the best friend of {p} is",
                   "the name of {p}'s best friend", "with whom {p} is often seen"],
    },
    "owns": {
        "answer": "{p} owns {a}.",
        "say": ["{p} has bought {a}.", "{p} is the owner of {a}.",
                "In the house of {p} there is {a}."],
        "ask": ["What does {p} own?", "What things does {p} have?", "Which things does {p} own?",
                "What has {p} bought?", "What belongs to {p}?", "What is in {p}'s house?",
                "Which things belong to {p}?", "What things are {p}'s?"],
        "clause": ["what {p} owns", "which things belong to {p}", "what {p} has bought",
                   "what things {p} has"],
    },
    "thing": {
        "answer": "{p}'s {t} is {a}.",
        "say": ["{p} owns a {t}, and it is {a}.", "The {t} of {p} is {a}.",
                "The colour of {p}'s {t} is {a}."],
        "ask": ["What colour is {p}'s {t}?", "What is the colour of {p}'s {t}?",
                "Which colour does {p}'s {t} have?", "What colour is the {t} of {p}?",
                "Which colour is {p}'s {t}?", "What colour is the {t} that {p} owns?",
                "What colour has {p}'s {t} got?"],
        "clause": ["what colour {p}'s {t} is", "which colour {p}'s {t} has",
                   "the colour of {p}'s {t}",
                   "what colour the {t} of {p} is"],
    },
    "lies": {
        "answer": "{p} lies {a}.",
        "say": ["The town of {p} stands {a}.", "{p} is a town {a}.", "You will find {p} {a}."],
        "ask": ["Where does {p} lie?", "Where is {p}?", "Where is the town of {p}?",
                "Where can I find {p}?", "Where does the town of {p} stand?",
                "In what kind of country does {p} lie?", "Where was {p} built?"],
        "clause": ["where {p} lies", "where {p} is", "where the town of {p} is",
                   "where {p} was built"],
    },
    "fame": {
        "answer": "{p} is famous for {a}.",
        "say": ["{p} is known for {a}.", "Everyone praises {p} for {a}.",
                "The pride of {p} is {a}."],
        "ask": ["What is {p} famous for?", "What is {p} known for?", "For what is {p} famous?",
                "Why do people go to {p}?", "What is the pride of {p}?",
                "What is {p} praised for?",
                "What makes {p} famous?"],
        "clause": ["what {p} is famous for", "what {p} is known for", "why people go to {p}",
                   "what makes {p} famous"],
    },
    "mayor": {
        "answer": "The mayor of {p} is {a}.",
        "say": ["{a} is the mayor of {p}.", "{p} has a mayor called {a}.",
                "The people of {p} made {a} mayor."],
        "ask": ["Who is the mayor of {p}?", "Who is {p}'s mayor?",
                "What is the mayor of {p} called?",
                "Who rules {p}?", "Who governs the town of {p}?", "Which mayor does {p} have?",
                "What is the name of {p}'s mayor?"],
        "clause": ["who the mayor of {p} is", "who rules {p}", "who {p}'s mayor is",
                   "the name of {p}'s mayor"],
    },
    "roofs": {
        "answer": "The roofs of {p} are {a}.",
        "say": ["In {p} the roofs are {a}.", "{p} has {a} roofs.",
                "The houses of {p} have {a} roofs."],
        "ask": ["What colour are the roofs of {p}?", "What colour are the roofs in {p}?",
                "Which colour do the roofs of {p} have?", "What colour are {p}'s roofs?",
                "What is the colour of the roofs in {p}?", "What colour roofs does {p} have?"],
        "clause": ["what colour the roofs of {p} are", "which colour {p}'s roofs have",
                   "the colour of the roofs in {p}", "what colour roofs {p} has"],
    },
    "sight": {
        "answer": "In {p} there is {a}.",
        "say": ["{p} has {a}.", "The town of {p} is proud of {a}.",
                "Visitors of {p} can see {a}."],
        "ask": ["What is there in {p}?", "What can I see in {p}?", "What is there to see in {p}?",
                "What should I visit in {p}?", "What can visitors see in {p}?",
                "What does {p} have?",
                "Which building is there in {p}?"],
        "clause": ["what there is in {p}", "what I can see in {p}", "what I should visit in {p}",
                   "what visitors can see in {p}"],
    },
    "next": {
        "answer": "The next town to {p} is {a}.",
        "say": ["{p} is next to {a}.", "From {p} the road leads to {a}.",
                "{a} is the town nearest to {p}."],
        "ask": ["Which town is next to {p}?", "What is the next town to {p}?",
                "Where does the road from {p} lead?", "Which town is nearest to {p}?",
                "What town is near {p}?", "Which town lies nearest to {p}?"],
        "clause": ["which town is next to {p}", "which town is nearest to {p}",
                   "where the road from {p} leads", "what town is near {p}"],
    },
    "sound": {
        "answer": "{p} says {a}.",
        "say": ["The sound of {p} is {a}."],
        "ask": ["What does {p} say?", "What sound does {p} make?", "What noise does {p} make?",
                "How does {p} sound?", "What is the sound of {p}?"],
        "clause": ["what {p} says", "what sound {p} makes", "how {p} sounds"],
    },
    "hue": {
        "answer": "The colour of {p} is {a}.",
        "say": ["As everyone knows, {p} is {a}."],
        "ask": ["What colour is {p}?", "What is the colour of {p}?", "Which colour has {p}?",
                "Which colour is {p}?", "What colour does {p} have?"],
        "clause": ["what colour {p} is", "the colour of {p}", "which colour {p} has"],
    },
    "use": {
        "answer": "We use {p} for {a}.",
        "say": ["People use {p} for {a}.", "For {a} one needs {p}."],
        "ask": ["What is {p} for?", "What is {p} used for?", "What do we use {p} for?",
                "Why do people need {p}?", "What can I do with {p}?"],
        "clause": ["what {p} is for", "what {p} is used for", "why people need {p}"],
    },
    "opposite": {
        "answer": "The opposite of {p} is {a}.",
        "say": ["What is not {p} is {a}."],
        "ask": ["What is the opposite of {p}?", "Which word is the opposite of {p}?",
                "What is the contrary of {p}?", "What is not {p}?"],
        "clause": ["what the opposite of {p} is", "the opposite of {p}"],
    },
    "young": {
        "answer": "The young of {p} is called {a}.",
        "say": ["When it is young, {p} is {a}.", "One day {a} will be {p}."],
        "ask": ["What is the young of {p} called?", "What do we call the young of {p}?",
                "What is the child of {p}?", "How is the young of {p} called?"],
        "clause": ["what the young of {p} is called", "the name for the young of {p}"],
    },
}

OF_PERSON = ["home", "job", "pet", "colour", "food", "music", "friend", "owns", "thing1",
"thing2"]
OF_TOWN = ["lies", "fame", "mayor", "roofs", "sight", "next"]

NO_PERSON = "I do not know anyone called {p}."
NO_TOWN = "I do not know a town called {p}."


def relation(name: str) -> dict:
    return RELATIONS[name.rstrip("12")]


def statements(name: str) -> list:
    """Every way to state the fact, the answering sentence first."""
    return [relation(name)["answer"]] + relation(name)["say"]


def questions(name: str) -> list:
    """Every way to ask for the fact: direct questions, then wrapped clauses."""
    r = relation(name)
    return r["ask"] + [w.replace("{c}", c) for c in r["clause"] for w in WRAP
                       if not (c.startswith("the ") and w.startswith("I wonder"))]

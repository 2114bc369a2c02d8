# SPDX-License-Identifier: Apache-2.0
"""Texts for dev/make_test_data.py, written for it: what tokenizers cut differently or cut wrong."""

TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\n \n\t\n",
    "A", " A", "a b  c   d", "ends with a blank ", "two \n\n lines\n",
    "The harbour master wrote the tide tables down, twice a day.",
    "It's the cat's; we'll see, they've gone, I'm here, she'd know, you're late, don't.",
    "IT'S HERE, WE'LL SEE, DON'T.", "o'clock ' 's 'S ''re",
    "1 12 123 1234 12345 1,234.50 0x7F 3.14159 2026-11-22T09:05:07Z v1.2.3",
    "!?... --- (a) [b] {c} <d> \"e\" 'f' @g #h $i %j ^k &l *m +n =o ~p `q` |r| \\s/",
    "def area(r):\n    return 3.14 * r ** 2  # circle\n\n\nprint(area(2))\n",
    "for (int i = 0; i < n; i++)\n\t{\n\t\tsum += a[i];\n\t}",
    "Z\u00fcrich, \u00c5rhus, \u0141\u00f3d\u017a, Reykjav\u00edk, S\u00e3o Paulo, \u0130stanbul, Ch\u00e2teauneuf",
    "e\u0301 and \u00e9, o\u0308 and \u00f6, \u1100\u1161\u11a8 and \uac01, \ufb01 and fi, \u212b",
    "\u0414\u043e\u0431\u0440\u044b\u0439 \u0434\u0435\u043d\u044c, \u041c\u0430\u0440\u0438\u044f! "
    "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1. \u05e9\u05dc\u05d5\u05dd. \u0645\u0631\u062d\u0628\u0627 \u0661\u0662\u0663.",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u6211\u4eec\u53bb\u516c\u56ed\u5427\uff01 \u65e5\u672c\u8a9e\u3068\u30ab\u30bf\u30ab\u30ca \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e8\U0001f1ed \u2764\ufe0f \u00bd \u2460 \u2167 \U00010348 \u20ac5",
    "\u00a0no\u00a0break\u00a0 \u2003em\u3000wide \u200bzero \u2028line \u0085next \ufeffmark",
    "\u2581under\u2581 \u2581\u2581 mark", "<0x0A> <0xFF> are texts, not bytes",
    "<s>", "</s>", "<unk>", "<|turn|>", "<tool>", "[end]",
    "<s> a </s>", "a<|turn|>b", "a <|turn|> b", "<|turn|><|turn|>", "<|turn", "turn|>",
    "call  <tool>  now", "stop [end]  here", "x<tool>[end]y", "<|turn|>\n<tool>\n[end]\n\n",
    "\u0000\u0001\u001b[0m\u007f", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "                                x",
    "thethethe the The tHe", "Nela lives in a small house by the river. Where does Nela live?",
    "supercalifragilistic antidisestablishmentarianism", "\U0010ffff \ufffd \ue000",
]

# Only trained on.
DECODED = ["the river and the house and the small boat", "they wrote down the tide and the wind",
           "return the value of the sum", "when we see the harbour we know the way"] * 3

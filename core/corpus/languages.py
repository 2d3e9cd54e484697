"""English names of the languages that can be identified."""

from __future__ import annotations

_NAMES = """
af Afrikaans, am Amharic, ar Arabic, as Assamese, az Azerbaijani, be Belarusian, bg Bulgarian,
bn Bengali, br Breton, bs Bosnian, ca Catalan, cs Czech, cy Welsh, da Danish, de German, el Greek,
en English, eo Esperanto, es Spanish, et Estonian, eu Basque, fa Persian, fi Finnish, fo Faroese,
fr French, fy Frisian, ga Irish, gd Scottish Gaelic, gl Galician, gu Gujarati, ha Hausa, he Hebrew,
hi Hindi, hr Croatian, ht Haitian Creole, hu Hungarian, hy Armenian, id Indonesian, ig Igbo,
is Icelandic, it Italian, ja Japanese, jv Javanese, ka Georgian, kk Kazakh, km Khmer, kn Kannada,
ko Korean, ku Kurdish, ky Kyrgyz, la Latin, lb Luxembourgish, lg Ganda, ln Lingala, lo Lao,
lt Lithuanian, lv Latvian, mg Malagasy, mk Macedonian, ml Malayalam, mn Mongolian, mr Marathi,
ms Malay, mt Maltese, my Burmese, ne Nepali, nl Dutch, no Norwegian, nb Norwegian, nn Norwegian,
oc Occitan, om Oromo, or Odia, pa Punjabi, pl Polish, ps Pashto, pt Portuguese, qu Quechua,
ro Romanian, ru Russian, sa Sanskrit, se Northern Sami, si Sinhala, sk Slovak, sl Slovenian,
so Somali, sq Albanian, sr Serbian, sv Swedish, sw Swahili, ta Tamil, te Telugu, tg Tajik, th Thai,
tk Turkmen, tl Tagalog, tr Turkish, tt Tatar, ug Uyghur, uk Ukrainian, ur Urdu, uz Uzbek,
vi Vietnamese, wa Walloon, wuu Wu Chinese, xh Xhosa, yo Yoruba, yue Cantonese, zh Chinese, zu Zulu
"""
LANGUAGE_NAMES = dict(entry.strip().split(" ", 1) for entry in _NAMES.split(","))


def name_of_language(code: str) -> str:
    """Returns the English name of an ISO 639 code, or the code; "" for no language."""
    return "" if code in ("", "zxx") else LANGUAGE_NAMES.get(code, code)

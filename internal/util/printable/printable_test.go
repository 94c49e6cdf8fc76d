// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "",
		"rank 1 on höst 世界":   "rank 1 on höst 世界",
		"ä\x1b[2J\xff":        `ä\x1b[2J\xff`,
		"\u009b31m":           `\u009b31m`,
		"a\nb\tc\r\n":         `a\nb\tc\r\n`,
		"\u202egnp.exe\u2066": `\u202egnp.exe\u2066`,
		"\x9b2J\xc2":          `\x9b2J\xc2`,
		"\U000e0001\x00\x7f":  `\U000e0001\x00\x7f`,
		`C:\new "x"`:          `C:\new "x"`,
		"\ufffd":              "\ufffd",
	} {
		if got := Line(text); got != want {
			t.Errorf("Line(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestLines(t *testing.T) {
	if got := Lines("a\r\n\tb\rc\x1b[0m\n"); got != "a\n\tb\\rc\\x1b[0m\n" {
		t.Errorf("%q", got)
	}
}

func TestUnmarshalCleansEveryText(t *testing.T) {
	type inner struct{ Host string }
	var got struct {
		Name string
		All  []inner
		Raw  json.RawMessage
		Map  map[string]string
		N    int
	}
	doc := `{"Name":"\u001b]52;c;eA==\u0007","All":[{"Host":"h` + "\u009b" + `1m"},{"Host":"plain \"q\" \\"}],` +
		`"Raw":{"deep":["\u009b2J\ntwo"]},"Map":{"k\u001b":"\u202e"},"N":7}`
	if err := Unmarshal([]byte(doc), &got); err != nil {
		t.Fatal(err)
	}
	var raw map[string][]string
	if err := json.Unmarshal(got.Raw, &raw); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{
		{got.Name, `\x1b]52;c;eA==\a`},
		{got.All[0].Host, `h\u009b1m`},
		{got.All[1].Host, `plain "q" \`},
		{raw["deep"][0], `\u009b2J` + "\ntwo"},
		{got.Map[`k\x1b`], `\u202e`},
	} {
		if c[0] != c[1] {
			t.Errorf("%q, want %q", c[0], c[1])
		}
	}
	if got.N != 7 {
		t.Errorf("N is %d", got.N)
	}
}

func TestWhatIsNotJSONStays(t *testing.T) {
	for _, doc := range []string{``, `"`, `"\`, `"\u12"`, `{"a":"b`, "\"\x1b\"", `nonsense "x\q"`, "\xff\"\xff\"\xff"} {
		var v any
		if err := Unmarshal([]byte(doc), &v); err == nil {
			if s, ok := v.(string); !ok || Lines(s) != s {
				t.Errorf("Unmarshal(%q) gave %q", doc, v)
			}
		}
	}
}

func TestDocument(t *testing.T) {
	for _, text := range []string{"plain", "höst 世界", "\u009b2J\x7f", "\U000e0001x\u202e", "\x1b[2J"} {
		doc, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		shown := Document(doc)
		var back string
		if err := json.Unmarshal(shown, &back); err != nil || back != text || Line(string(shown)) != string(shown) {
			t.Errorf("%q became %q and %q (%v)", text, shown, back, err)
		}
	}
}

// harmless reports whether s may be shown.
func harmless(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' }) < 0
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"a":["\u001b[2J","plain"],"b":{"c\u009b":"\ud800\\"}}`))
	f.Add([]byte("\"\xc2\x9b\""))
	f.Fuzz(func(t *testing.T, doc []byte) {
		var before, after any
		was, is := json.Unmarshal(doc, &before), Unmarshal(doc, &after)
		if (was == nil) != (is == nil) {
			t.Fatalf("%q: %v before, %v after", doc, was, is)
		}
		if is == nil {
			check(t, after)
			again := JSON(JSON(doc))
			if string(again) != string(JSON(doc)) {
				t.Errorf("cleaned twice: %q and %q", JSON(doc), again)
			}
		}
		if shape(before) != shape(after) {
			t.Errorf("%q: its shape was %s and is %s", doc, shape(before), shape(after))
		}
	})
}

// check looks at every text of a decoded document.
func check(t *testing.T, v any) {
	t.Helper()
	switch v := v.(type) {
	case string:
		if !harmless(v) {
			t.Errorf("%q is left", v)
		}
	case []any:
		for _, one := range v {
			check(t, one)
		}
	case map[string]any:
		for key, one := range v {
			check(t, key)
			check(t, one)
		}
	}
}

// shape is what a document consists of without its texts. Members of objects are left out: two names may become one.
func shape(v any) string {
	list, ok := v.([]any)
	if !ok {
		if v == nil {
			return "null"
		}
		return reflect.TypeOf(v).Kind().String()
	}
	all := make([]string, len(list))
	for i := range list {
		all[i] = shape(list[i])
	}
	return "[" + strings.Join(all, " ") + "]"
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package schematest

import (
	"strings"
	"testing"
)

const small = `{"title":"x","description":"d","type":"object","required":["kind"],"properties":{
"kind":{"type":"string","x-extensible-enum":["a","b"],"description":"d"},"when_at":{"type":"string","format":"date-time","description":"d"},
"age_s":{"type":"number","minimum":0,"description":"d"},"list":{"type":"array","items":{"$ref":"#/$defs/part"},"description":"d"},
"counts":{"type":"object","additionalProperties":{"type":"integer"},"description":"d"}},
"$defs":{"part":{"type":"object","description":"d","properties":{"n":{"type":"integer","description":"d"}}}}}`

// TestCheck: what is wrong with a document is found, and where.
func TestCheck(t *testing.T) {
	t.Parallel()
	s, err := Parse([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`{"kind":"a","when_at":"2026-01-02T03:04:05.5Z","age_s":1,"list":[{"n":1}],"counts":{"x":2}}`: "",
		`{}`:                                                 `"kind" is missing`,
		`{"kind":"c"}`:                                       `kind: "c" is none of`,
		`{"kind":"a","more":1}`:                              `does not name "more"`,
		`{"kind":1}`:                                         `is of type integer, not string`,
		`{"kind":"a","age_s":-1}`:                            `age_s: -1 is less than 0`,
		`{"kind":"a","age_s":"1"}`:                           `age_s: 1 is of type string`,
		`{"kind":"a","list":[{"m":1}]}`:                      `list[0]: the schema does not name "m"`,
		`{"kind":"a","list":[{"n":1.5}]}`:                    `list[0].n: 1.5 is of type number, not integer`,
		`{"kind":"a","counts":{"x":"y"}}`:                    `counts.x: y is of type string`,
		`{"kind":"a","when_at":"0001-01-01T00:00:00Z"}`:      `is not a time in UTC`,
		`{"kind":"a","when_at":"2026-01-02T03:04:05+01:00"}`: `is not a time in UTC`,
		`[]`: `is of type array`,
		`{`:  `unexpected end`,
	} {
		got := strings.Join(s.Check([]byte(text)), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if wrong := s.Lint(); wrong != nil {
		t.Error(wrong)
	}
}

// TestLint: a schema with names that readers cannot understand is refused.
func TestLint(t *testing.T) {
	t.Parallel()
	for field, want := range map[string]string{
		`"RunID":{"type":"string","description":"d"}`:                        "not in snake_case",
		`"took_ns":{"type":"integer","description":"d"}`:                     "nanoseconds",
		`"took":{"type":"number","description":"d"}`:                         "needs its unit",
		`"started":{"type":"string","format":"date-time","description":"d"}`: "ends with _at",
		`"started_at":{"type":"string","description":"d"}`:                   "ends with _at",
		`"x":{"type":"string"}`:                                              "no description",
		`"x":{"type":"object","required":["y"],"description":"d"}`:           "does not have",
	} {
		s, err := Parse([]byte(`{"description":"d","properties":{` + field + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.Lint(), "\n"); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
	}
	if _, err := Parse([]byte(`{"oneOf":[]}`)); err == nil {
		t.Error("a keyword that the checks do not know was taken")
	}
}

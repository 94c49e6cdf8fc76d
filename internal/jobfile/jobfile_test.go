// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobfile

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := Parse([]byte(`
name: mixed
options:
  max-restarts: 3
  standalone: true
roles:
  - name: trainer
    workers: 2
    program: [train.py, --lr, 0.1, --flag, yes]
    env: {OMP_NUM_THREADS: 4}
  - name: loader
    program: ./loader
    dir: /srv
`))
	want := &File{
		Name: "mixed", Options: map[string]Scalar{"max-restarts": "3", "standalone": "true"},
		Roles: []Role{
			{Name: "trainer", Workers: "2", Program: Words{"train.py", "--lr", "0.1", "--flag", "yes"}, Env: map[string]Scalar{"OMP_NUM_THREADS": "4"}},
			{Name: "loader", Program: Words{"./loader"}, Dir: "/srv"},
		},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                      "it is empty",
		"name: x":                               "it has no roles",
		"roles: [{program: a}]":                 "role 1 has no name",
		"roles: [{name: a}]":                    "role a has no program",
		"roles: [{name: a, progam: b}]":         "field progam not found",
		"roles: [{name: a, program: {b: c}}]":   "a single value is wanted here",
		"roles: [{name: a, workers: [1]}]":      "a single value is wanted here",
		"roles: {":                              "yaml",
		"roles: [{name: a, program: b}]\n---\n": "more than one document",
		"roles: [{name: a, program: b}, {name: a, program: b}]": "two roles have the name a",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("roles: [{name: a, program: [b, 1]}]")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = Parse([]byte(text)) })
}

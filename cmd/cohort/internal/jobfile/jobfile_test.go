// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobfile

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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
		Name: "mixed", Options: map[string]scalar{"max-restarts": "3", "standalone": "true"},
		Roles: []role{
			{
				Name: "trainer", Workers: "2", Program: command{"train.py", "--lr", "0.1", "--flag", "yes"},
				Env: map[string]scalar{"OMP_NUM_THREADS": "4"},
			},
			{Name: "loader", Program: command{"./loader"}, Dir: "/srv"},
		},
	}
	want.Roles[0].Line, want.Roles[1].Line = 7, 11
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(File{})); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                      "it is empty",
		"name: x":               "it has no roles",
		"roles: [{program: a}]": "line 1: role 1 has no name",
		"roles: [{name: a}]":    "line 1: role a has no program",
		"roles: [{name: a, progam: " +
			"b}]": `line 1: "progam" is unknown here; the known names are name, workers, program, module, python, dir, env`,
		"roles: [{name: a, program: {b: c}}]":   "a single value is expected here",
		"roles: [{name: a, workers: [1]}]":      "a single value is expected here",
		"roles: {":                              "line 1: did not find",
		"roles: [{name: a, program: b}]\n---\n": "more than one document",
		"rolls: []":                             `line 1: "rolls" is unknown here; the known names are name, options, roles`,
		"roles: 3":                              "line 1: this must be a list of roles",
		"[1, 2]":                                "line 1: this must be name, options and roles",
		"\nroles:\n- text":                      "line 3: this must be a role: its name, program and so on",
		"roles:\n- {name: a, program: b, module: maybe}": "line 2: this must be true or false",
		"roles:\n- {name: a, program: b, env: [x]}":      "line 2: this must be names with values",
		"roles:\n- {name: a, program: b, env: {X: [1]}}": "line 2: a single value is expected here",
		"roles:\n- {name: a, program: b, env: {A=B: 1}}": `line 2: role a: "A=B" is not a valid variable name`,
		"roles:\n- {name: a, program: [b, ~]}":           "line 2: a word of the program is missing here",
		"roles:\n- name: a\n  name: b\n  program: c":     `line 3: mapping key "name" already defined at line 2`,
		"roles:\n\t- name: a":                            "line 2: found character that cannot start any token",
		"roles:\n- name: a\n  program: [b\n":             "line 2: did not find",
		"roles: [{name: a, program: b}]\n---\nx: [":      "line 3: did not find",
		"roles: [*a]": "unknown anchor",
		"roles: [{name: a, program: b}, {name: a, program: b}]": "line 1: two roles have the name a",
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

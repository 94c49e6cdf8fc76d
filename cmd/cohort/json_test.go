// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/schema"
	"github.com/cohort-dist/cohort/internal/testing/schematest"
)

// jsonSeen is the file with the commands whose output jsonlines has looked at, formsSeen with the forms that it has found.
const jsonSeen, formsSeen = "json-seen", "forms-seen"

// sharedForms are those that any command may print where errors go.
var sharedForms = []string{"error", "note", "connecting", "log"}

// formsOf are the forms of a command's results: the one of its own name, but for these.
var formsOf = map[string][]string{
	"run": {"job", "plan"}, "why": {"job"}, "ps": {"job"}, "bench.coll": {"bench"}, "bench.rpc": {"bench"}, "bench.train": {"bench"},
}

// jsonlines WORDS...: each line that the last program has printed is an object of one of its forms. The words are the command that it was.
func jsonLines(ts *testscript.TestScript, _ bool, args []string) {
	own := formsOf[strings.Join(args, ".")]
	if own == nil {
		own = []string{strings.Join(args, ".")}
	}
	for _, stream := range []string{"stdout", "stderr"} {
		for line := range strings.Lines(ts.ReadFile(stream)) {
			form, wrong := formOf(line)
			if wrong != nil {
				ts.Fatalf("%s: %s: %s\n%s", strings.Join(args, " "), stream, line, strings.Join(wrong, "\n"))
			}
			if !slices.Contains(own, form) && (stream == "stdout" || !slices.Contains(sharedForms, form)) {
				ts.Fatalf("%s: %s: its form is %s: give the command a schema of its own name, in cmd/cohort/internal/schema",
					strings.Join(args, " "), stream, form)
			}
			remember(ts, formsSeen, form)
		}
	}
	remember(ts, jsonSeen, strings.Join(args, "-"))
}

// formOf returns the form of a line, "store.get", and what is wrong with it by the schema of that form.
func formOf(line string) (string, []string) {
	var head struct{ Schema string }
	if err := json.Unmarshal([]byte(line), &head); err != nil {
		return "", []string{"it is not an object: " + err.Error()}
	}
	text, err := schema.Text(head.Schema)
	if err != nil {
		return "", []string{"its field \"schema\" names no schema: " + err.Error()}
	}
	s, err := schematest.Parse(text)
	if err != nil {
		return "", []string{err.Error()}
	}
	form := strings.TrimSuffix(strings.TrimPrefix(head.Schema, "cohort."), ".v1")
	return form, s.Check([]byte(line))
}

func remember(ts *testscript.TestScript, file, word string) {
	f, err := os.OpenFile(ts.MkAbs(file), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	ts.Check(err)
	_, err = f.WriteString(word + "\n")
	ts.Check(err)
	ts.Check(f.Close())
}

// alljson PAGES OTHERS...: jsonlines has looked at every command that has a manual page in a folder, except the others: those that
// only have commands below them, or whose output is another language. It has found every form, but for what another test checks.
func allJSON(ts *testscript.TestScript, _ bool, args []string) {
	pages, err := filepath.Glob(filepath.Join(ts.MkAbs(args[0]), "cohort-*.1"))
	ts.Check(err)
	if len(pages) == 0 {
		ts.Fatalf("there are no pages in %s", args[0])
	}
	seen := append(strings.Fields(ts.ReadFile(jsonSeen)), args[1:]...)
	for _, page := range pages {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(page), "cohort-"), ".1")
		if !slices.Contains(seen, name) {
			ts.Fatalf("nothing looks at the JSON of %q", name)
		}
	}
	found := append(strings.Fields(ts.ReadFile(formsSeen)), "store.stats")
	all, err := schema.All()
	ts.Check(err)
	for _, f := range all {
		if form := strings.TrimSuffix(strings.TrimPrefix(f.Name, "cohort."), ".v1"); !slices.Contains(found, form) {
			ts.Fatalf("no command prints the form %q: look at the output that has it, or remove its schema", form)
		}
	}
}

// TestSchemas: every schema can be read, describes each field, and has names with units.
func TestSchemas(t *testing.T) {
	all, err := schema.All()
	if err != nil || len(all) < 20 {
		t.Fatal(len(all), err)
	}
	for _, f := range all {
		text, err := schema.Text(f.Name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := schematest.Parse(text)
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		if s.Title != f.Name || s.Properties["schema"] == nil || s.Properties["schema"].Const != f.Name {
			t.Errorf("%s: it is called %q, its field \"schema\" is %+v", f.Name, s.Title, s.Properties["schema"])
		}
		for _, wrong := range s.Lint() {
			t.Errorf("%s: %s", f.Name, wrong)
		}
	}
}

// TestJSONPage: the example in docs/json.md is a document by its schema.
func TestJSONPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "json.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```json\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/json.md has no example")
	}
	if form, wrong := formOf(example); form != "job" || wrong != nil {
		t.Errorf("%s: %q", form, wrong)
	}
}

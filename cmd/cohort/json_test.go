// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// jsonSeen is the file with the commands whose output jsonlines has looked at.
const jsonSeen = "json-seen"

// jsonlines WORDS...: each line that the last program has printed is one JSON object. The words are the command that it was.
func jsonLines(ts *testscript.TestScript, _ bool, args []string) {
	for _, stream := range []string{"stdout", "stderr"} {
		for line := range strings.Lines(ts.ReadFile(stream)) {
			object := map[string]any{}
			if err := json.Unmarshal([]byte(line), &object); err != nil {
				ts.Fatalf("%s: %s: %q is not an object: %v", strings.Join(args, " "), stream, line, err)
			}
		}
	}
	f, err := os.OpenFile(ts.MkAbs(jsonSeen), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	ts.Check(err)
	_, err = f.WriteString(strings.Join(args, "-") + "\n")
	ts.Check(err)
	ts.Check(f.Close())
}

// alljson PAGES OTHERS...: jsonlines has looked at every command that has a manual page in a folder, except the others: those that
// only have commands below them, or whose output is another language.
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
}

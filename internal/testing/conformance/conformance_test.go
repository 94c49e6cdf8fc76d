// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestConformancePage checks docs/conformance.md against PyTorch's tests and ours, and prints the counts.
func TestConformancePage(t *testing.T) {
	doc, problems := parse(read(t, filepath.Join(root, "docs/conformance.md")))
	lists, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(lists) == 0 {
		t.Fatalf("no lists of PyTorch's tests: %v", err)
	}
	found := newTree(root, "store/storetest")
	used := map[string]bool{}
	var files []string
	for _, s := range doc.Sections {
		files = append(files, listOf(s.File))
		problems = append(problems, s.Compare(strings.Fields(read(t, listOf(s.File))))...)
		goTests, reasons := map[GoTest]bool{}, map[string]int{}
		answered := 0
		for _, row := range s.Rows {
			for _, g := range row.Go {
				goTests[g] = true
				if err := found.Find(g); err != nil {
					problems = append(problems, fmt.Errorf("line %d: %s: %w", row.Line, row.Test, err))
				}
			}
			if row.Reason != "" {
				reasons[row.Reason]++
				used[row.Reason] = true
			} else {
				answered++
			}
		}
		t.Logf("%s: %d tests, %d with a Go counterpart (%d Go tests), %d with a reason %v",
			s.File, len(s.Rows), answered, len(goTests), len(s.Rows)-answered, reasons)
	}
	for _, list := range lists {
		if !slices.Contains(files, list) {
			problems = append(problems, fmt.Errorf("%s has no section in the page", list))
		}
	}
	for reason := range doc.Reasons {
		if !used[reason] {
			problems = append(problems, fmt.Errorf("the reason %q is used by no row", reason))
		}
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

// listOf returns the list of the tests of a PyTorch test file.
func listOf(file string) string {
	return filepath.Join("testdata", strings.TrimSuffix(strings.ReplaceAll(file, "/", "_"), ".py")+".txt")
}

const sample = `
## Reasons
| reason | meaning |
| --- | --- |
| later | not yet |
| no ` + "`Python`" + ` | why |

## test_a.py
| PyTorch test | Go test or reason |
| --- | --- |
| ` + "`A.test_x` | `store` `TestMemory/Append`, `store` `TestSupports`" + ` |
| ` + "`A.test_y`" + ` | later |
`

func TestParse(t *testing.T) {
	doc, problems := parse(sample)
	if len(problems) != 0 || len(doc.Sections) != 1 || len(doc.Reasons) != 2 {
		t.Fatalf("%+v, %v", doc, problems)
	}
	rows := doc.Sections[0].Rows
	if len(rows) != 2 || len(rows[0].Go) != 2 || rows[0].Go[0] != (GoTest{"store", "TestMemory", "Append"}) || rows[1].Reason != "later" {
		t.Fatalf("%+v", rows)
	}
	if problems := doc.Sections[0].Compare([]string{"A.test_x", "A.test_y"}); problems != nil {
		t.Error(problems)
	}
}

// Every kind of mistake must be found, or the page could rot unseen.
func TestMistakesAreFound(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"", "", ""},
		{"`A.test_y` | later", "`A.test_y` | because", "neither a Go test nor a reason"},
		{"`A.test_y` | later", "A.test_y | later", "is not a PyTorch test"},
		{"`A.test_y` | later", "`A.test_y` | later | and", "has 3"},
		{"## test_a.py", "## Other", "is neither a test file"},
		{"`store` `TestSupports`", "`store` TestSupports", "neither a Go test nor a reason"},
		{"`A.test_y`", "`A.test_x`", "has two rows"},
		{"`A.test_y`", "`A.test_z`", "has no test A.test_z"},
		{"`A.test_y`", "`A.test_z`", "A.test_y has no row"},
		{"TestSupports", "TestNoSuch", "no such test"},
		{"TestMemory/Append", "TestMemory/NoSuch", "no subtest"},
		{"`store` `TestSupports`", "`nowhere` `TestSupports`", "no such package"},
		{"`store` `TestSupports`", "`../x` `TestSupports`", "leads out of the repository"},
	} {
		doc, problems := parse(strings.Replace(sample, c.old, c.new, 1))
		found := newTree(root, "store/storetest")
		for _, s := range doc.Sections {
			problems = append(problems, s.Compare([]string{"A.test_x", "A.test_y"})...)
			for _, row := range s.Rows {
				for _, g := range row.Go {
					if err := found.Find(g); err != nil {
						problems = append(problems, err)
					}
				}
			}
		}
		if c.want == "" {
			if len(problems) > 0 {
				t.Errorf("the sample itself: %v", problems)
			}
			continue
		}
		if !strings.Contains(fmt.Sprint(problems), c.want) {
			t.Errorf("%q: got %v, want %q", c.new, problems, c.want)
		}
	}
}

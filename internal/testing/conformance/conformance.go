// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance reads docs/conformance.md, which says for every test of PyTorch's test files what its Go counterpart
// is or why there is none.
package conformance

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// document is the page.
type document struct {
	// Reasons are the allowed reasons for a row without a Go test, with their meanings.
	Reasons map[string]string
	// Sections are the PyTorch test files, in their order.
	Sections []Section
}

// Section is one PyTorch test file.
type Section struct {
	// File is the name of the PyTorch test file.
	File string
	Rows []Row
}

// Row is one PyTorch test.
type Row struct {
	// Line is where the row stands in the page.
	Line int
	// Test is the PyTorch test: Class.name.
	Test string
	// Go are the Go tests that are its counterpart; if there are none Reason says why.
	Go     []GoTest
	Reason string
}

// GoTest names a test.
type GoTest struct {
	// Package is the path of the folder in this repository.
	Package string
	// Name is the function, Subtest what follows the first slash, if anything.
	Name, Subtest string
}

// String returns the test as the page writes it.
func (g GoTest) String() string {
	if g.Subtest != "" {
		return g.Package + " " + g.Name + "/" + g.Subtest
	}
	return g.Package + " " + g.Name
}

const reasonsHeading = "Reasons"

var (
	testFile   = regexp.MustCompile(`^[\w/]+\.py$`)
	pythonTest = regexp.MustCompile("^`(\\w+\\.\\w+)`$")
	goTest     = regexp.MustCompile("^`([\\w/.-]+)` `((?:Test|Fuzz|Example)\\w*)(?:/([^`]+))?`$")
)

// parse reads the page. It returns all its mistakes.
func parse(text string) (*document, []error) {
	doc := &document{Reasons: map[string]string{}}
	var problems []error
	var section *Section
	heading := ""
	for i, line := range strings.Split(text, "\n") {
		number := i + 1
		if title, ok := strings.CutPrefix(line, "## "); ok {
			heading = title
			section = nil
			if testFile.MatchString(title) {
				doc.Sections = append(doc.Sections, Section{File: title})
				section = &doc.Sections[len(doc.Sections)-1]
			} else if title != reasonsHeading {
				problems = append(problems, fmt.Errorf("line %d: the section %q is neither a test file nor %q", number, title,
					reasonsHeading))
			}
			continue
		}
		cells, ok := tableRow(line)
		if !ok {
			continue
		}
		switch {
		case len(cells) != 2:
			problems = append(problems, fmt.Errorf("line %d: a row has two cells, this one has %d", number, len(cells)))
		case isHeader(cells):
		case section != nil:
			row, err := parseRow(number, cells)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			section.Rows = append(section.Rows, row)
		case heading == reasonsHeading:
			doc.Reasons[cells[0]] = cells[1]
		}
	}
	for _, s := range doc.Sections {
		for _, row := range s.Rows {
			if _, known := doc.Reasons[row.Reason]; row.Reason != "" && !known {
				problems = append(problems, fmt.Errorf("line %d: %s: %q is neither a Go test nor a reason of the list", row.Line,
					row.Test, row.Reason))
			}
		}
	}
	return doc, problems
}

func tableRow(line string) ([]string, bool) {
	line = strings.TrimSpace(line)
	if len(line) < 2 || line[0] != '|' || line[len(line)-1] != '|' {
		return nil, false
	}
	cells := strings.Split(line[1:len(line)-1], "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells, true
}

func isHeader(cells []string) bool {
	return strings.Trim(cells[0], "-: ") == "" || cells[0] == "reason" || cells[0] == "PyTorch test"
}

func parseRow(line int, cells []string) (Row, error) {
	match := pythonTest.FindStringSubmatch(cells[0])
	if match == nil {
		return Row{}, fmt.Errorf("line %d: %q is not a PyTorch test of the form Class.test_name in back quotes", line, cells[0])
	}
	row := Row{Line: line, Test: match[1]}
	for part := range strings.SplitSeq(cells[1], ", ") {
		m := goTest.FindStringSubmatch(part)
		if m == nil {
			return Row{Line: line, Test: match[1], Reason: cells[1]}, nil
		}
		row.Go = append(row.Go, GoTest{Package: m[1], Name: m[2], Subtest: m[3]})
	}
	return row, nil
}

// Compare returns how the rows of the section differ from the names of PyTorch's tests.
func (s *Section) Compare(names []string) []error {
	var problems []error
	seen := map[string]bool{}
	for _, row := range s.Rows {
		if seen[row.Test] {
			problems = append(problems, fmt.Errorf("line %d: %s has two rows", row.Line, row.Test))
		}
		seen[row.Test] = true
		if !slices.Contains(names, row.Test) {
			problems = append(problems, fmt.Errorf("line %d: %s has no test %s", row.Line, s.File, row.Test))
		}
	}
	for _, name := range names {
		if !seen[name] {
			problems = append(problems, fmt.Errorf("%s: %s has no row", s.File, name))
		}
	}
	return problems
}

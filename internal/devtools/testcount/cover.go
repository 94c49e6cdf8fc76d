// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// fewCovered is the share of a package's statements, in percent, below which the package is named.
const fewCovered = 50

// covered counts the statements of a package, or of all, and those that a test reached.
type covered struct{ reached, all int }

func (c covered) percent() float64 { return 100 * float64(c.reached) / float64(max(c.all, 1)) }

// coverageOf reads the profile that `go test -coverprofile` has written and says how much the tests of each package reach of that
// package, and of which packages they reach little.
func coverageOf(profile string) (total, few string, err error) {
	f, err := os.Open(profile) //nolint:gosec // the name is an argument
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	packages, err := readProfile(f)
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", profile, err)
	}
	var sum covered
	var names []string
	for _, pkg := range slices.SortedFunc(maps.Keys(packages), func(a, b string) int {
		return strings.Compare(fmt.Sprintf("%6.2f %s", packages[a].percent(), a), fmt.Sprintf("%6.2f %s", packages[b].percent(), b))
	}) {
		c := packages[pkg]
		sum.reached += c.reached
		sum.all += c.all
		if c.percent() < fewCovered {
			names = append(names, fmt.Sprintf("%s %.0f%%", pkg, c.percent()))
		}
	}
	return fmt.Sprintf("%.1f%% of %d statements, by the tests of their own package", sum.percent(), sum.all), strings.Join(names, ", "), nil
}

// readProfile counts by package. A line is "path/file.go:1.2,3.4 statements count"; those of one block that several
// runs have written are one.
func readProfile(r io.Reader) (map[string]covered, error) {
	type block struct{ statements, count int }
	blocks := map[string]block{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] == "mode:" {
			continue
		}
		if len(fields) != 3 {
			return nil, fmt.Errorf("%q is not a line of a coverage profile", lines.Text())
		}
		statements, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, err
		}
		count, err := strconv.Atoi(fields[2])
		if err != nil {
			return nil, err
		}
		blocks[fields[0]] = block{statements, max(count, blocks[fields[0]].count)}
	}
	if len(blocks) == 0 && lines.Err() == nil {
		return nil, errors.New("the coverage profile is empty")
	}
	packages := map[string]covered{}
	for place, b := range blocks {
		pkg := strings.TrimPrefix(path.Dir(place), "github.com/cohort-dist/cohort/")
		c := packages[pkg]
		c.all += b.statements
		if b.count > 0 {
			c.reached += b.statements
		}
		packages[pkg] = c
	}
	return packages, lines.Err()
}

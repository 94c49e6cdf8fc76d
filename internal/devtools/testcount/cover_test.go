// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCoverage(t *testing.T) {
	const profile = `mode: set
github.com/cohort-dist/cohort/store/a.go:1.1,2.2 6 1
github.com/cohort-dist/cohort/store/a.go:3.1,4.2 2 0
github.com/cohort-dist/cohort/internal/x/b.go:1.1,2.2 1 1
github.com/cohort-dist/cohort/internal/x/b.go:3.1,9.2 3 0
github.com/cohort-dist/cohort/internal/x/c.go:1.1,2.2 4 0
github.com/cohort-dist/cohort/internal/y/d.go:1.1,2.2 4 0
github.com/cohort-dist/cohort/store/a.go:1.1,2.2 6 0
`
	name := filepath.Join(t.TempDir(), "cover.out")
	for _, c := range []struct{ profile, total, few, wantErr string }{
		{profile: profile, total: "35.0% of 20 statements, by the tests of their own package", few: "internal/y 0%, internal/x 12%"},
		{profile: "mode: atomic\nm/p/a.go:1.1,2.2 1 7\n", total: "100.0% of 1 statements, by the tests of their own package"},
		{profile: "mode: set\n", wantErr: "empty"},
		{profile: "mode: set\nsomething else entirely here\n", wantErr: "not a line of a coverage profile"},
		{profile: "mode: set\nm/p/a.go:1.1,2.2 one 7\n", wantErr: "one"},
	} {
		if err := os.WriteFile(name, []byte(c.profile), 0o600); err != nil {
			t.Fatal(err)
		}
		total, few, err := coverageOf(name)
		if total != c.total || few != c.few || (err == nil) != (c.wantErr == "") ||
			err != nil && !strings.Contains(err.Error(), c.wantErr) {
			t.Errorf("%q: %q, %q, %v", c.profile, total, few, err)
		}
	}
	if _, _, err := coverageOf(name + ".missing"); err == nil {
		t.Error("a profile that does not exist was read")
	}
}

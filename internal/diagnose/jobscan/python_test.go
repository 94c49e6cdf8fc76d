// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLineOf: a call that goes over several lines is told as a whole, without its comments.
func TestLineOf(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "train.py")
	text := `x = 1  # one
dist.all_reduce(
    x,  # the sum (of all
    group=f(a, "b)"),
)
y = 2
print("a ( in a text")
z = (  # never closed
` + strings.Repeat("1 +\n", 40)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[int]string{
		1: "x = 1", 2: `dist.all_reduce( x, group=f(a, "b)"), )`, 4: `group=f(a, "b)"),`, 6: "y = 2", 7: `print("a ( in a text")`,
		8: "z = (", 99: "",
	} {
		if got := lineOf(name, line); got != want {
			t.Errorf("line %d: %q, want %q", line, got, want)
		}
	}
}

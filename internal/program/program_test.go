// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestDevices: the number that Python prints is taken, whatever else is printed, and the last line of an error is told.
func TestDevices(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, want string }{
		"a number":     {`[ "$1 $3" = "-c xpu" ] && echo a library greets && echo cohort devices 6`, "6"},
		"no such kind": {"echo Traceback >&2; echo 'ValueError: Xpu is not available.' >&2; exit 1", "cannot tell how many such devices there are: ValueError: Xpu is not available."},
		"silence":      {"exit 3", "exit status 3"},
		"nonsense":     {"echo cohort devices many", `says that there are "many" such devices`},
		"none":         {"echo cohort devices 0", `says that there are "0" such devices`},
	} {
		python := filepath.Join(t.TempDir(), "python")
		if err := os.WriteFile(python, []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		n, err := Devices(python, "xpu")
		got := strconv.Itoa(n)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if _, err := Devices("/no/such/python", "xpu"); err == nil || !strings.Contains(err.Error(), "/no/such/python") {
		t.Errorf("no interpreter: %v", err)
	}
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	if got, want := Quoted([]string{"sh", "-c", "it's $X", "", "a=b"}), `sh -c 'it'\''s $X' '' a=b`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

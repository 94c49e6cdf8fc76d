// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestDevices: the number that Python prints is taken, whatever else is printed, and the last line of an error is reported.
func TestDevices(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, want string }{
		"a number": {`[ "$1 $3" = "-c xpu" ] && echo a library greets && echo cohort devices 6`, "6"},
		"no such kind": {
			"echo Traceback >&2; echo 'ValueError: Xpu is not available.' >&2; exit 1",
			"cannot tell how many such devices there are: ValueError: Xpu is not available.",
		},
		"a great deal": {"head -c 10000000 /dev/zero | tr '\\0' x; echo; echo cohort devices 7", "7"},
		"silence":      {"exit 3", "exit status 3"},
		"nonsense":     {"echo cohort devices many", `answered that there are "many" such devices`},
		"none":         {"echo cohort devices 0", `answered that there are "0" such devices`},
	} {
		python := filepath.Join(t.TempDir(), "python")
		if err := os.WriteFile(python, []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		n, err := Devices(t.Context(), python, "xpu")
		got := strconv.Itoa(n)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if _, err := Devices(t.Context(), "/no/such/python", "xpu"); err == nil || !strings.Contains(err.Error(), "/no/such/python") {
		t.Errorf("no interpreter: %v", err)
	}
}

// TestDevicesEnd: who asks need not wait for Python, which may be loading PyTorch, nor for what it has started.
func TestDevicesEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	python, asked, late := filepath.Join(dir, "python"), filepath.Join(dir, "asked"), filepath.Join(dir, "late")
	if err := os.WriteFile(python, []byte("#!/bin/sh\n: > "+asked+"\nsleep 30\n: > "+late+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for _, err := os.Stat(asked); err != nil; _, err = os.Stat(asked) {
			time.Sleep(time.Millisecond)
		}
		cancel(enough)
	}()
	if n, err := Devices(ctx, python, "xpu"); !errors.Is(err, enough) {
		t.Errorf("%d devices, %v", n, err)
	}
	if _, err := os.Stat(late); err == nil {
		t.Error("Python was waited for")
	}
}

// TestEnd: only the last bytes are kept.
func TestEnd(t *testing.T) {
	t.Parallel()
	var e end
	for range 100 {
		if n, err := e.Write([]byte(strings.Repeat("x", 5000))); n != 5000 || err != nil {
			t.Fatal(n, err)
		}
	}
	if n, err := e.Write([]byte("last")); n != 4 || err != nil || len(e) != endSize || !strings.HasSuffix(string(e), "xlast") {
		t.Errorf("%d bytes are kept; %d, %v", len(e), n, err)
	}
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	if got, want := Quoted([]string{"sh", "-c", "it's $X", "", "a=b"}), `sh -c 'it'\''s $X' '' a=b`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

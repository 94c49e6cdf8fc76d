// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package stacks

import (
	"context"
	"errors"
	"os"
	"testing"
)

func TestNotPython(t *testing.T) {
	t.Parallel()
	var r Reader
	if _, err := r.Read(t.Context(), os.Getpid()); !errors.Is(err, ErrNotPython) {
		t.Errorf("reading a Go process: %v, want %v", err, ErrNotPython)
	}
	if _, err := r.Read(t.Context(), 1<<22+1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reading no process: %v, want %v", err, os.ErrNotExist)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Read(ctx, os.Getpid()); !errors.Is(err, context.Canceled) {
		t.Errorf("reading with an ended context: %v", err)
	}
}

func TestParseMapping(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"55d0c0000000-55d0c0001000 r--p 00000000 08:01 77 /usr/bin/python3.13":          "/usr/bin/python3.13",
		"55d0c0000000-55d0c0001000 r--p 00001000 08:01 77 /usr/bin/python3.13":          "",
		"55d0c0000000-55d0c0001000 r--p 00000000 08:01 77 /usr/lib/libc.so.6":           "",
		"55d0c0000000-55d0c0001000 r--p 00000000 00:00 0":                               "",
		"zz-55d0c0001000 r--p 00000000 08:01 77 /usr/bin/python3.13":                    "",
		"7f00-7f01 r--p 00000000 08:01 77 /opt/my env/lib/libpython3.14.so.1 (deleted)": "/opt/my env/lib/libpython3.14.so.1 (deleted)",
	} {
		if _, _, path, ok := parseMapping(line); ok != (want != "") || ok && path != want {
			t.Errorf("%q: path %q, %v; want %q", line, path, ok, want)
		}
	}
}

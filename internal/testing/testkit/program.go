// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// BuildProgram compiles the program in a folder of the module, such as "cmd/cohort", without cgo, as a release does,
// and returns the path of the executable. It stays in .tmp of the checkout, where the go command finds it up to date
// next time and does not link again.
func BuildProgram(tb testing.TB, folder string) string {
	tb.Helper()
	const module = "github.com/cohort-dist/cohort"
	root, err := exec.CommandContext(tb.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		tb.Fatalf("build %s: find the module: %v", folder, err)
	}
	dir := filepath.Join(strings.TrimSpace(string(root)), ".tmp", "programs", strings.ReplaceAll(folder, "/", "-"))
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // tests run programs as other users, too
		tb.Fatalf("build %s: %v", folder, err)
	}
	program := filepath.Join(dir, filepath.Base(folder))
	//nolint:gosec // a folder that the test names
	build := exec.CommandContext(tb.Context(), "go", "build", "-ldflags=-s", "-o", program, module+"/"+folder)
	// In the same file system the new executable replaces the old one at once: a test that runs the old one is not disturbed.
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOTMPDIR="+dir)
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build %s: %v\n%s", folder, err, out)
	}
	return program
}

// RunProgram runs a program to its end, without input, and returns its exit status and what it has written to standard
// output and standard error.
func RunProgram(tb testing.TB, program string, args ...string) (code int, out, complaint string) {
	tb.Helper()
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // a program that the test names
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		tb.Fatalf("run %s: %v", program, err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

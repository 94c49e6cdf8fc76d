// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// BuildProgram compiles the program in a folder of the module, such as "cmd/cohort", without cgo, as a release does. It returns the
// path of the executable, which is removed when the test ends.
func BuildProgram(tb testing.TB, folder string) string {
	tb.Helper()
	program := filepath.Join(tb.TempDir(), filepath.Base(folder))
	build := exec.CommandContext(tb.Context(), "go", "build", "-ldflags=-s", "-o", program, "github.com/cohort-dist/cohort/"+folder) //nolint:gosec // a folder that the test names
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build %s: %v\n%s", folder, err, out)
	}
	return program
}

// RunProgram runs a program to its end, without input, and returns its exit status and what it has written to standard output and standard error.
func RunProgram(tb testing.TB, program string, args ...string) (code int, out, complaint string) {
	tb.Helper()
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		tb.Fatalf("run %s: %v", program, err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
)

// signalling sends SIGTERM to this process with the first thing that is written.
type signalling struct {
	bytes.Buffer
	t      *testing.T
	caught chan os.Signal // here too
}

func (s *signalling) Write(b []byte) (int, error) {
	if s.Len() == 0 {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			s.t.Error(err)
		}
		<-s.caught // and by every other handler that is set by now
	}
	return s.Buffer.Write(b)
}

// TestSignalBeforeTheJob: a signal that comes before the job has begun, while it is said how many workers there will be,
// ends it all the same.
func TestSignalBeforeTheJob(t *testing.T) {
	complaints := &signalling{t: t, caught: make(chan os.Signal, 1)}
	signal.Notify(complaints.caught, syscall.SIGTERM)
	defer signal.Stop(complaints.caught)
	from := time.Now()
	code := Main([]string{
		runName, "--nproc-per-node", "auto", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:1",
		"--rdzv-conf", "is_host=0,join_timeout=30", "--evidence", "-", "true",
	}, IO{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: complaints, Getenv: func(string) string { return "" }})
	if took := time.Since(from); code != command.ExitFailure || took > 25*time.Second ||
		!strings.Contains(complaints.String(), "the job was ended by SIGTERM") {
		t.Errorf("exit code %d after %v\n%s", code, took, complaints.String())
	}
}

// TestSignalWhilePythonIsAsked: a signal ends the command while Python, which may be loading PyTorch, has not yet told its devices.
func TestSignalWhilePythonIsAsked(t *testing.T) {
	dir := t.TempDir()
	python, late := filepath.Join(dir, "python"), filepath.Join(dir, "late")
	script := fmt.Sprintf("#!/bin/sh\nkill -TERM %d\nsleep 30\n: > %s\n", os.Getpid(), late)
	if err := os.WriteFile(python, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PYTHON_EXEC", python)
	for option, args := range map[string][]string{"--nproc-per-node": {"--nproc-per-node", "xpu"}, "PET_NPROC_PER_NODE": nil} {
		t.Setenv("PET_NPROC_PER_NODE", "xpu")
		var out bytes.Buffer
		code := Main(slices.Concat([]string{runName, "--evidence", "-"}, args, []string{"true"}),
			IO{In: strings.NewReader(""), Out: &out, Err: &out, Getenv: func(string) string { return "" }})
		if want := "cohort: " + option + " xpu: " + python +
			" did not answer how many there are: terminated signal received\n"; code != command.ExitFailure || out.String() != want {
			t.Errorf("exit code %d\n%swant\n%s", code, out.String(), want)
		}
		if _, err := os.Stat(late); err == nil {
			t.Error("Python was waited for")
		}
	}
}

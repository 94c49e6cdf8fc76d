// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package group

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
)

// dumpsIn reads the dumps in a folder once there are as many as expected for a reason.
func dumpsIn(t *testing.T, dir, reason string, want int) []flightrec.Dump {
	t.Helper()
	for range 500 {
		names, err := filepath.Glob(filepath.Join(dir, "group-*.json"))
		must(t, err)
		var dumps []flightrec.Dump
		for _, name := range names {
			data, err := os.ReadFile(name)
			must(t, err)
			d, err := flightrec.Parse(data)
			must(t, err) // a file is whole whenever it is seen
			if d.Reason == reason {
				dumps = append(dumps, d)
			}
		}
		if len(dumps) == want {
			return dumps
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no %d dumps for the reason %q in %s", want, reason, dir)
	return nil
}

func TestDumpFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "dumps")
	groups := newWorld(t, 3, WithTransport(TCP), WithDumpFiles(dir, syscall.SIGUSR1), WithName("a/b"))
	must(t, each(3, func(r int) error { return groups[r].Barrier(ctxOf(t)).Wait(ctxOf(t)) }))
	work := groups[0].Barrier(ctxOf(t))
	must(t, syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	v := flightrec.Analyze(dumpsIn(t, dir, "signal", 3))
	if v.Finding != flightrec.LateRank || !strings.HasPrefix(v.Sentence, "ranks 1 and 2 never entered #1") {
		t.Errorf("%s: %s", v.Finding, v.Sentence)
	}
	work.Abort()
	if err := work.Wait(ctxOf(t)); !errors.Is(err, cohort.Aborted) {
		t.Fatal(err)
	}
	if n := len(dumpsIn(t, dir, "failure", 3)); n != 3 {
		t.Errorf("%d dumps after the failure", n)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	if len(names) != 3 || !strings.HasPrefix(filepath.Base(names[0]), "group-a_b.rank0.") {
		t.Errorf("files %v", names)
	}
}

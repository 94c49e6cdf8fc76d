// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestTokenIsNowhere: the token of a job is in no command line, no environment of a worker, no output, no log, no report and no evidence of
// the job, however the launcher has got it.
func TestTokenIsNowhere(t *testing.T) {
	t.Parallel()
	file, _ := newToken(t)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	secret := string(text)[len("cohort1."):]
	for name, variable := range map[string]string{"value": "COHORT_TOKEN=" + string(text), "file": "COHORT_TOKEN_FILE=" + file} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			c := (&lan{t: t}).run(cohortWith(variable, "run", "--nnodes", "1:2", "--rdzv-backend", "c10d",
				"--rdzv-endpoint", "127.0.0.1:"+strconv.Itoa(testkit.FreePort(t)), "--rdzv-conf", "last_call_timeout=0.1,is_host=1",
				"--log-dir", filepath.Join(dir, "logs"), "--tee", "3", "--evidence", filepath.Join(dir, "evidence"),
				"--report", filepath.Join(dir, "report"), "sh", "-c",
				`cat /proc/[0-9]*/cmdline | tr '\0' ' '; cat /proc/$$$$/environ | tr '\0' '\n'; echo looked; exit 3`))
			if code := c.ends(); code != 1 || !strings.Contains(c.String(), "looked") {
				t.Fatalf("exit code %d\n%s", code, c)
			}
			files := 0
			err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return err
				}
				files++
				text, err := os.ReadFile(name)
				if strings.Contains(string(text), secret) {
					t.Errorf("the token is in %s", name)
				}
				return err
			})
			if err != nil || files < 4 {
				t.Errorf("%d files, %v", files, err)
			}
			if strings.Contains(c.String(), secret) {
				t.Error("the token is in the output, the arguments of a process or the environment of the worker")
			}
		})
	}
}

// TestStrangerWithoutToken: on a network, launchers that have the job's token form the job; a stranger with another one, or without TLS,
// can neither join nor end it, and is told one sentence.
func TestStrangerWithoutToken(t *testing.T) {
	t.Parallel()
	l := newLAN(t, 3)
	file := filepath.Join(t.TempDir(), "worlds")
	options := []string{
		"run", "--nnodes", "2", "--rdzv-id", "known", "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29400", "--evidence", "-",
	}
	first := l.start(1, append(options, "sh", "-c", "echo machine=1 world=$$WORLD_SIZE >> "+file)...)
	testkit.Until(t, "the rendezvous listens", func() bool { return strings.Contains(first.String(), "by TLS, with the token "+l.id) })
	theirs, _ := newToken(t)
	for want, own := range map[string][]string{
		"what listens at 10.77.0.1:29400 is not a launcher of this job": {"--token-file", theirs},
		"the rendezvous accepts only launchers that use TLS":            {"--insecure-plaintext"},
	} {
		stranger := l.start(3, append(append([]string{}, options...), append(own, "--rdzv-conf", "is_host=0", "echo", "stolen")...)...)
		if code := stranger.ends(); code != 1 || !strings.Contains(stranger.String(), want) ||
			strings.Contains(stranger.String(), "stolen\n") {
			t.Errorf("a stranger with %q: exit code %d\n%s", own, code, stranger)
		}
	}
	began := time.Now()
	second := l.start(2, append(options, "sh", "-c", "echo machine=2 world=$$WORLD_SIZE >> "+file)...)
	for i, c := range []*command{first, second} {
		if code := c.ends(); code != 0 {
			t.Errorf("node %d: exit code %d\n%s", i, code, c)
		}
	}
	t.Logf("the second node has joined and ended within %v", time.Since(began))
	if worlds, err := os.ReadFile(file); err != nil || strings.Count(string(worlds), "world=2\n") != 2 {
		t.Errorf("%q, %v", worlds, err)
	}
	for _, said := range []string{"has another token or certificate than this job", "does not use TLS and was refused"} {
		if strings.Count(first.String(), said) != 1 {
			t.Errorf("the host does not say once that a client %s:\n%s", said, first)
		}
	}
}

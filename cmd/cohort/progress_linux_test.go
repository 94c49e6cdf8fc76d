// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/termtest"
)

// unfinished is a job of three ranks that never end a line: a progress bar that keeps changing, dots that have stopped, and
// a prompt behind a line. The marks of a rank are its own.
const unfinished = `case $RANK in
0) i=0; while :; do i=$((i+1)); printf '\r<0>%d/9999' $i >&2; sleep 0.05; done;;
1) printf '<1>loading ' >&2; printf '..'; exec sleep 1000;;
2) echo '<2>begin'; printf '<2>name? '; exec sleep 1000;;
esac`

// TestProgressIsVisible: in every way of running a job the lines that are not finished are shown while it runs, and no line
// shows two ranks.
func TestProgressIsVisible(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pipe, noSize bool
		env, options []string
	}{
		"live view":               {},
		"--tee, live view":        {options: []string{"--tee", "3"}},
		"--prefix never, live":    {options: []string{"--prefix", "never"}},
		"--no-live":               {options: []string{"--no-live"}},
		"--no-live, never":        {options: []string{"--no-live", "--prefix", "never"}},
		"--no-live, --tee":        {options: []string{"--no-live", "--tee", "3"}},
		"TERM=dumb":               {env: []string{"TERM=dumb"}},
		"TERM=dumb, never":        {env: []string{"TERM=dumb"}, options: []string{"--prefix", "never"}},
		"terminal without a size": {noSize: true},
		"pipe":                    {pipe: true},
		"pipe, --prefix always":   {pipe: true, options: []string{"--prefix", "always"}},
		"pipe, --tee":             {pipe: true, options: []string{"--tee", "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"run", "--nproc-per-node", "3", "--evidence", "-"}, c.options...)
			args = append(args, "sh", "-c", strings.ReplaceAll(unfinished, "$", "$$"))
			cmd := exec.Command("cohort", args...)
			if c.noSize {
				cmd = exec.Command("sh", append([]string{"-c", `stty rows 0 cols 0; exec cohort "$@"`, "sh"}, args...)...)
			}
			text := startAndRead(t, cmd, c.pipe, append(c.env, "XDG_STATE_HOME="+t.TempDir()))
			for _, part := range []string{`<0>\d+/9999`, `<1>loading`, `\.\.`, `<2>begin`, `<2>name\?`} {
				waitForText(t, text, part)
			}
			for line := range strings.Lines(text()) {
				marks := regexp.MustCompile(`<\d>`).FindAllString(line, -1)
				for _, m := range marks {
					if m != marks[0] {
						t.Errorf("a line of two ranks: %q", line)
					}
				}
			}
		})
	}
}

// startAndRead starts a command on a terminal or with one pipe for both streams, and returns what has been shown so far.
func startAndRead(t *testing.T, cmd *exec.Cmd, pipe bool, env []string) func() string {
	t.Helper()
	if !pipe {
		term := commandOnTerminal(t, env, cmd)
		t.Cleanup(func() { _ = cmd.Process.Signal(unix.SIGTERM); <-term.done })
		return func() string { return strings.Join(term.screen.Lines(true), "\n") }
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	screen := termtest.New(1000, 1000) // a pipe that ends in a terminal, as through cat
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(screen, r)
		close(done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
		<-done
		_ = r.Close()
	})
	return func() string { return strings.Join(screen.Lines(true), "\n") }
}

func waitForText(t *testing.T, text func() string, pattern string) {
	t.Helper()
	wanted := regexp.MustCompile(pattern)
	for limit := time.Now().Add(15 * time.Second); !wanted.MatchString(text()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%q is not shown:\n%s", pattern, text())
		}
	}
}

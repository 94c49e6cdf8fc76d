// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package democmd

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/sys/selfexe"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/launch"
)

// rankScript is the program of the PyTorch rank.
//
//go:embed demo_rank.py
var rankScript []byte

// The scenes that a job plays under the launcher.
const (
	sceneKill = "kill"
	sceneHang = "hang"
)

// scenes are the second half of the demonstration: what the launcher does for a job.
type scenes struct {
	*app
	workers int
	start   time.Time
	style   tui.Style
}

// tell prints a line of the story, or an event.
func (s *scenes) tell(event, text string) {
	if s.JSON {
		_ = s.Print("demo", map[string]any{"event": event, "elapsed_ms": time.Since(s.start).Milliseconds(), "text": text}, "")
		return
	}
	_, _ = fmt.Fprintln(s.Out, text)
}

func (s *scenes) title(text string) {
	if !s.JSON {
		_, _ = fmt.Fprintln(s.Out, "\n"+s.style.Bold(text))
	}
}

// play shows the death of a rank and a rank that hangs.
func (s *scenes) play(ctx context.Context, torch bool) error {
	if err := s.kill(ctx); err != nil {
		return err
	}
	if s.workers < 2 {
		return nil // no worker would wait
	}
	python := ""
	if torch {
		python = findTorch(ctx)
	}
	err := s.hang(ctx, python)
	if err != nil && python != "" && ctx.Err() == nil {
		s.tell("torch", fmt.Sprintf("  the PyTorch rank of %s did not play along: %v", python, err))
		err = s.hang(ctx, "")
	}
	return err
}

// job describes a job of this program.
func (s *scenes) job(scene string) (launch.Config, error) {
	self, err := selfexe.Path()
	if err != nil {
		return launch.Config{}, err
	}
	return launch.Config{
		Program: []string{self, "demo-worker", "--scene", scene}, How: launch.Executable, Workers: s.workers, NoEvidence: true,
		RunID: "demo-" + strconv.Itoa(os.Getpid()) + "-" + scene, Supervisor: command.Supervisor(),
	}, nil
}

// kill runs a job in which a rank is killed at the first attempt.
func (s *scenes) kill(ctx context.Context) error {
	s.title(fmt.Sprintf("One rank is killed: cohort run --nproc-per-node %d --max-restarts 1 ...", s.workers))
	cfg, err := s.job(sceneKill)
	if err != nil {
		return err
	}
	cfg.MaxRestarts = 1
	out := &sceneOutput{scenes: s}
	report, err := launch.Run(ctx, cfg, launch.Screen{Out: out, Err: out, Ranks: true}, nil)
	if err != nil {
		return err
	}
	if len(report.Attempts) != 2 {
		return fmt.Errorf("demo: the job with a killed rank: %d attempts", len(report.Attempts))
	}
	first := *report
	first.Succeeded, first.Attempts = false, report.Attempts[:1]
	first.Sentence = first.Attempts[0].Sentence()
	s.tell("report", "  The report, had there been no restart:\n"+indent(first.Text(nil), "    "))
	s.tell("restarted", s.style.Green("done:")+" the job was restarted and succeeded")
	return nil
}

// hang runs a job that trains a network, and in which a rank does not come to an all-reduce, and asks why it stands still.
func (s *scenes) hang(ctx context.Context, python string) error {
	cfg, err := s.job(sceneHang)
	if err != nil {
		return err
	}
	who := "All ranks train a network, then one hangs: cohort why"
	if python != "" {
		who = "All ranks train a network, one of them with PyTorch, which then hangs: cohort why"
		var dir string
		if dir, err = os.MkdirTemp("", "cohort-demo-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		script := filepath.Join(dir, "demo_rank.py")
		if err = os.WriteFile(script, rankScript, 0o600); err != nil {
			return err
		}
		cfg.Program = append(cfg.Program, "--python", python, "--script", script)
	}
	s.title(who)
	playing, stop := context.WithCancel(ctx)
	defer stop()
	out := &sceneOutput{scenes: s, hangs: make(chan struct{})}
	ended := make(chan error, 1)
	var running sync.WaitGroup
	running.Go(func() {
		_, failure := launch.Run(playing, cfg, launch.Screen{Out: out, Err: out, Ranks: true}, nil)
		ended <- failure
	})
	defer running.Wait()
	defer stop()
	select {
	case <-out.hangs:
	case err = <-ended:
		return fmt.Errorf("demo: the job that was to hang has ended: %w", cmp.Or(err, errors.New("it succeeded")))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err = s.why(ctx, cfg.RunID)
	out.silence() // what follows is the end of the job, which is none of the story
	return err
}

// why asks this program as a user would.
func (s *scenes) why(ctx context.Context, job string) error {
	self, err := selfexe.Path()
	if err != nil {
		return err
	}
	for limit := time.Now().Add(10 * time.Second); ; {
		text, err := exec.CommandContext(ctx, self, "why", job).CombinedOutput() //nolint:gosec // ourselves
		if err == nil && bytes.Contains(text, []byte("has not reached all_reduce")) {
			s.tell("why", indent(strings.TrimRight(string(text), "\n"), "    "))
			s.tell("explained", s.style.Green("done:")+" the rank that the others wait for was named, and where it is")
			return nil
		}
		if err != nil || time.Now().After(limit) {
			return fmt.Errorf("demo: cohort why: %w: %s", errors.Join(err, errors.New("no answer that names the rank")), text)
		}
	}
}

// next says what a user can do now.
func (s *scenes) next() {
	if s.JSON {
		return
	}
	_, _ = fmt.Fprint(s.Out, `
What to try next:
  cohort run --nproc-per-node 4 train.py    start a PyTorch script, or any program, in place of torchrun
  cohort ps; cohort why                     see any job on this host; say why it hangs
  cohort store top --addr HOST:PORT         watch the store of a job
  go get github.com/cohort-dist/cohort      be a rank of a PyTorch job in Go
`)
}

// sceneOutput shows what the workers of a scene print. hangs is closed once a rank hangs.
type sceneOutput struct {
	*scenes
	hangs chan struct{} // or nil

	mu struct {
		sync.Mutex
		hung, silent bool
	}
}

func (o *sceneOutput) silence() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.silent = true
}

// hangText is what a rank says before it hangs.
const hangText = "loads the next batch"

func (o *sceneOutput) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.silent {
		return len(text), nil
	}
	for line := range strings.Lines(string(text)) {
		o.tell("line", "  "+printable.Line(strings.TrimRight(line, "\n")))
	}
	if o.hangs != nil && !o.mu.hung && bytes.Contains(text, []byte(hangText)) {
		o.mu.hung = true
		close(o.hangs)
	}
	return len(text), nil
}

var _ io.Writer = (*sceneOutput)(nil)

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+by)
}

// findTorch returns a Python that has torch, or "".
func findTorch(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // it takes a tenth of a second, but not on a busy machine
	defer cancel()
	for _, name := range []string{os.Getenv("PYTHON_EXEC"), "python3"} {
		path, err := exec.LookPath(name)
		if name == "" || err != nil {
			continue
		}
		const has = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
		if exec.CommandContext(ctx, path, "-c", has).Run() == nil { //nolint:gosec // the user's own Python
			return path
		}
	}
	return ""
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/cli/command"
	"github.com/cohort-dist/cohort/internal/cli/storecmd"
	"github.com/cohort-dist/cohort/internal/tui"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func (a *app) demoCommand() *cobra.Command {
	var workers int
	var limit time.Duration
	var torch string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run four processes together, kill one, hang one, and show what cohort says about it",
		Long: strings.TrimSpace(`
Start a store and worker processes on this machine. The workers find each other
through the store, exchange keys, count together and pass a barrier, as the ranks of a
PyTorch job do. Then they sum a vector with an all-reduce, train a small network
together, and pass a remote reference around.

In a second job one rank is killed, and you see the report and the restart. The ranks of
a third job train a network; then one hangs, and "cohort why" says which and where. If
python3 has torch, that is a PyTorch rank. Nothing is left behind, however the
demonstration ends.`),
		Example: strings.Trim(`
  cohort demo
  cohort demo --workers 8 --json`, "\n"),
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if workers < 1 || workers > 64 {
				return command.Usage(fmt.Errorf("--workers %d: from 1 to 64", workers))
			}
			if torch != "auto" && torch != "never" {
				return command.Usage(fmt.Errorf("--torch %s: it must be auto or never", torch))
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			err := a.demo(ctx, workers)
			if err == nil && runtime.GOOS == "linux" { // elsewhere jobs cannot be looked at from outside
				s := &scenes{app: a, workers: workers, start: time.Now(), style: tui.StyleFor(a.Out, a.Getenv)}
				if err = s.play(ctx, torch == "auto"); err == nil {
					s.next()
				}
			}
			if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return dist.Newf("demo", dist.DeadlineExceeded, "not finished within %s; --timeout gives it more", limit)
			}
			return command.Explain(ctx, err)
		},
	}
	cmd.Flags().IntVar(&workers, "workers", 4, "number of worker processes")
	cmd.Flags().DurationVar(&limit, "timeout", time.Minute, "give up after this time")
	cmd.Flags().StringVar(&torch, "torch", "auto", "auto lets a PyTorch rank take part if python3 has torch; never")
	return cmd
}

// demo runs the whole demonstration.
func (a *app) demo(ctx context.Context, workers int) error {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	view := newDemoView(a, server, workers)
	view.opening()
	reports := make(chan demoReport)
	ended := make(chan workerEnd)
	var running sync.WaitGroup
	defer running.Wait() // after cancel: no worker outlives this call
	defer cancel()
	for rank := range workers {
		running.Go(func() {
			ended <- runWorker(ctx, rank, workers, server.Addr(), view.started, reports)
		})
	}
	var failures []error
	redraw := time.NewTicker(100 * time.Millisecond)
	defer redraw.Stop()
	for left := workers; left > 0; {
		select {
		case r := <-reports:
			view.report(r)
			if r.Error != "" && ctx.Err() == nil {
				failures = append(failures, fmt.Errorf("rank %d: %s: %s", r.Rank, demoActs()[r.Act].name, r.Error))
				cancel()
			}
		case end := <-ended:
			left--
			if end.err != nil && len(failures) == 0 {
				failures = append(failures, end.err)
				cancel()
			}
		case <-redraw.C:
			view.draw()
		}
	}
	view.draw()
	if len(failures) > 0 {
		return failures[0]
	}
	return view.closing()
}

// workerEnd is how a worker process ended.
type workerEnd struct{ err error }

// runWorker runs one worker process and passes its reports on until it has ended. When ctx ends the process is killed.
func runWorker(
	ctx context.Context, rank, size int, addr net.Addr, started func(rank, pid int), reports chan<- demoReport,
) workerEnd {
	fail := func(err error) workerEnd { return workerEnd{fmt.Errorf("rank %d: %w", rank, err)} }
	program, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return fail(err)
	}
	cmd := exec.CommandContext(ctx, program, "demo-worker", "--rank", strconv.Itoa(rank)) //nolint:gosec // ourselves
	cmd.Env = append(os.Environ(),
		rendezvous.EnvRank+"="+strconv.Itoa(rank), rendezvous.EnvWorldSize+"="+strconv.Itoa(size),
		rendezvous.EnvMasterAddr+"="+host, rendezvous.EnvMasterPort+"="+port,
		rendezvous.EnvUseAgentStore+"=True", // the store is here, so that all ranks are its clients
		rendezvous.EnvRestartCount+"=0")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	// Held open while we live: a worker that reads its end knows that we are gone.
	if _, err = cmd.StdinPipe(); err != nil {
		return fail(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fail(err)
	}
	release, err := startTied(cmd)
	if err != nil {
		return fail(err)
	}
	defer release()
	started(rank, cmd.Process.Pid)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var r demoReport
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil || r.Rank != rank || r.Act < 0 || r.Act >= len(demoActs()) {
			continue
		}
		reports <- r
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return fail(context.Cause(ctx))
		}
		if said := strings.TrimSpace(complaints.String()); said != "" {
			err = errors.New(said)
		}
		return fail(err)
	}
	return workerEnd{}
}

// demoView shows the progress: a board that is drawn over itself on a terminal, else one line for each thing that
// happens.
type demoView struct {
	app    *app
	server *tcpstore.Server
	style  tui.Style
	live   bool
	start  time.Time
	drawn  int    // lines of the last frame
	waits  string // who waited when that was last told

	mu    sync.Mutex
	board tui.Demo
}

func newDemoView(a *app, server *tcpstore.Server, workers int) *demoView {
	v := &demoView{
		app: a, server: server, style: tui.StyleFor(a.Out, a.Getenv), start: time.Now(),
		live:  !a.JSON && tui.IsTerminal(a.Out) && a.Getenv("TERM") != "dumb",
		board: tui.Demo{Addr: server.Addr().String(), Acts: actNames(), Workers: make([]tui.DemoWorker, workers)},
	}
	for rank := range v.board.Workers {
		v.board.Workers[rank].States = make([]tui.State, len(v.board.Acts))
	}
	return v
}

// say prints one line of the plain form, or one JSON object.
func (v *demoView) say(event string, rank int, text string) {
	if v.live {
		return
	}
	elapsed := time.Since(v.start)
	who := "store"
	object := map[string]any{"event": event, "ms": elapsed.Milliseconds(), "text": text}
	if rank >= 0 {
		who = "rank " + strconv.Itoa(rank)
		object["rank"] = rank
	}
	_ = v.app.Print(object, fmt.Sprintf("%6.2fs  %-7s  %s", elapsed.Seconds(), who, tui.Printable(text)))
}

func (v *demoView) opening() {
	v.say("store", -1, fmt.Sprintf("ready on %s, starting %s", v.board.Addr, processes(len(v.board.Workers))))
}

// started is called by the goroutine of each worker.
func (v *demoView) started(rank, pid int) {
	v.mu.Lock()
	v.board.Workers[rank].PID = pid
	v.mu.Unlock()
}

func (v *demoView) report(r demoReport) {
	v.mu.Lock()
	w := &v.board.Workers[r.Rank]
	pid := w.PID
	switch {
	case r.Error != "":
		w.States[r.Act], w.Last = tui.Failed, r.Error
	case r.Ended:
		w.States[r.Act], w.Last = tui.Done, r.Text
	default:
		w.States[r.Act] = tui.Playing
	}
	v.mu.Unlock()
	switch {
	case r.Error != "":
		v.say(v.board.Acts[r.Act], r.Rank, "failed: "+r.Error)
	case r.Ended:
		text := r.Text
		if r.Act == 0 {
			text += fmt.Sprintf(" (pid %d)", pid)
		}
		v.say(v.board.Acts[r.Act], r.Rank, text)
	}
	v.draw()
}

// draw replaces the board on the terminal; elsewhere it tells when others wait than before.
func (v *demoView) draw() {
	if !v.live {
		if words := tui.WaitWords(storecmd.WaitsOf(v.server.Stats(), false)); words != v.waits {
			v.waits = words
			if words != "" {
				v.say("wait", -1, words)
			}
		}
		return
	}
	v.mu.Lock()
	v.board.Elapsed = time.Since(v.start)
	v.board.Waits = storecmd.WaitsOf(v.server.Stats(), false)
	frame := v.board.Frame(tui.Width(v.app.Out), v.style)
	v.mu.Unlock()
	var b strings.Builder
	if v.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", v.drawn)
	}
	for line := range strings.Lines(frame) {
		b.WriteString("\r\x1b[2K" + line)
	}
	v.drawn = strings.Count(frame, "\n")
	_, _ = fmt.Fprint(v.app.Out, b.String())
}

func processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// closing tells what happened.
func (v *demoView) closing() error {
	stats := v.server.Stats()
	elapsed := time.Since(v.start)
	text := fmt.Sprintf("%s met, exchanged keys, counted to %d, passed a barrier, added up a vector, trained a network and passed a reference around in %.1f s; the store did %s operations on %d keys",
		processes(len(v.board.Workers)), 250*len(v.board.Workers), elapsed.Seconds(), tui.Count(storecmd.OpsOf(stats)), stats.Keys)
	if v.app.JSON {
		return v.app.Print(map[string]any{"event": "end", "ms": elapsed.Milliseconds(), "text": text, "workers": len(v.board.Workers)}, "")
	}
	_, err := fmt.Fprintln(v.app.Out, v.style.Green("done:")+" "+text)
	return err
}

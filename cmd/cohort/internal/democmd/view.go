// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package democmd

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/storecmd"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// view shows the progress: a board that is drawn over itself on a terminal, else one line for each thing that
// happens.
type view struct {
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

func newView(a *app, server *tcpstore.Server, workers int) *view {
	v := &view{
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
func (v *view) say(event string, rank int, text string) {
	if v.live {
		return
	}
	elapsed := time.Since(v.start)
	who := "store"
	object := map[string]any{"event": event, "elapsed_ms": elapsed.Milliseconds(), "text": text}
	if rank >= 0 {
		who = "rank " + strconv.Itoa(rank)
		object["rank"] = rank
	}
	_ = v.app.Print("demo", object, fmt.Sprintf("%6.2fs  %-7s  %s", elapsed.Seconds(), who, printable.Line(text)))
}

func (v *view) opening() {
	v.say("store", -1, fmt.Sprintf("ready on %s, starting %s", v.board.Addr, processes(len(v.board.Workers))))
}

// started is called by the goroutine of each worker.
func (v *view) started(rank, pid int) {
	v.mu.Lock()
	v.board.Workers[rank].PID = pid
	v.mu.Unlock()
}

func (v *view) report(r message) {
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
func (v *view) draw() {
	if !v.live {
		if words := tui.WaitText(storecmd.WaitsOf(v.server.Stats(), false)); words != v.waits {
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
func (v *view) closing() error {
	stats := v.server.Stats()
	elapsed := time.Since(v.start)
	text := fmt.Sprintf(
		"%s met, exchanged keys, counted to %d, passed a barrier, added up a vector, trained a network and passed a reference "+
			"around in %.1f s; the store did %s operations on %d keys",
		processes(len(v.board.Workers)), 250*len(v.board.Workers), elapsed.Seconds(), tui.Count(storecmd.OpsOf(stats)), stats.Keys)
	if v.app.JSON {
		return v.app.Print("demo", map[string]any{
			"event": "end", "elapsed_ms": elapsed.Milliseconds(), "text": text, "workers": len(v.board.Workers),
		}, "")
	}
	_, err := fmt.Fprintln(v.app.Out, v.style.Green("done:")+" "+text)
	return err
}

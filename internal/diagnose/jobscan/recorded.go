// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/observe/progresspage"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
)

// maxRecorder bounds a dump that is asked for.
const maxRecorder = 64 << 20

// pipeTime bounds the wait for the dump of a rank that was asked through its pipe: it looks once a second, and before its first
// dump PyTorch imports what finds the lines of the program, which takes about six seconds.
const pipeTime = 10 * time.Second

// recorded returns the flight recorder of a rank of PyTorch: from its worker server, or from the file that it has written. A rank of
// NCCL writes it when it is asked, and a line into its log; so it is asked only with Notes.
func recorded(ctx context.Context, q question) *torchdump.Dump {
	if server := q.Env["TORCH_WORKER_SERVER_SOCKET"]; server != "" {
		if d := askRecorders(ctx, server); d != nil && len(d.Entries) > 0 {
			return d
		}
	}
	file := cmp.Or(q.Env["TORCH_FR_DUMP_TEMP_FILE"], q.Env["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"])
	if file == "" {
		return nil
	}
	number, named := strconv.Itoa(q.Rank), q.Env["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]
	for _, q.Below = range []string{"root", ""} { // the rank may see another one
		q.Path = file + number
		written := q.path()
		q.Path = named + number + ".pipe"
		pipe := q.path()
		info, err := os.Stat(pipe)
		listens := named != "" && err == nil && info.Mode()&os.ModeNamedPipe != 0
		switch {
		case listens && q.Notes && !stoppedNow(q.PID):
			askPipe(ctx, pipe, written)
			return readDump(written)
		case listens:
			return nil // what is in the file may have been long ago
		}
		if d := readDump(written); d != nil {
			return d
		}
	}
	return nil
}

// stoppedNow reports whether a process is stopped: it answers nothing.
func stoppedNow(pid int) bool {
	_, state := stat("/proc", pid)
	return state == "T" || state == "t"
}

// readDump reads the file of a flight recorder, nil if it is old or none.
func readDump(name string) *torchdump.Dump {
	info, err := os.Stat(name)
	if err != nil || info.Size() > maxRecorder || time.Since(info.ModTime()) > 10*time.Minute {
		return nil
	}
	b, err := os.ReadFile(name) //nolint:gosec // the rank itself names it
	if err != nil {
		return nil
	}
	d, err := torchdump.Parse(b)
	if err != nil {
		return nil
	}
	return d
}

// askPipe has an NCCL rank write its flight recorder, which it does after any byte in its pipe, and waits until the file has changed.
func askPipe(ctx context.Context, pipe, file string) {
	before := modified(file)
	f, err := os.OpenFile(pipe, os.O_WRONLY|nonblock, 0) //nolint:gosec // the rank names it; it fails where no process reads
	if err != nil {
		return
	}
	_, err = f.WriteString("1\n")
	_ = f.Close()
	for limit := time.Now().Add(pipeTime); err == nil && time.Now().Before(limit); {
		if !modified(file).Equal(before) && readDump(file) != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func modified(name string) time.Time {
	info, err := os.Stat(name)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// recorders are what a worker server has for the flight recorders of a process: gloo's, that of NCCL's older backend, and those of the
// newer ones. An older server answers a question about the last as the first.
var recorders = []string{"fr_trace_json", "dump_nccl_trace_json", "fr_trace_json?backend=nccl2", "fr_trace_json?backend=nccl-lazy"}

// askRecorders returns the flight recorder of a process that has an operation which is not finished, or else one that has recorded
// something. A process with several backends has several.
func askRecorders(ctx context.Context, server string) *torchdump.Dump {
	ctx, cancel := context.WithTimeout(ctx, 2*askTime)
	defer cancel()
	var best *torchdump.Dump
	for _, handler := range recorders {
		d := askServer(ctx, server, handler)
		if d == nil {
			continue
		}
		if slices.ContainsFunc(d.Entries, func(e torchdump.Entry) bool { return e.Open }) {
			return d
		}
		if best == nil || len(best.Entries) == 0 {
			best = d
		}
	}
	return best
}

// askServer asks PyTorch's worker server, on a socket or at an address ("http://host:port").
func askServer(ctx context.Context, server, handler string) *torchdump.Dump {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	base, socket := server, !strings.HasPrefix(server, "http://")
	if socket {
		base = "http://worker"
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if socket {
				network, addr = "unix", server
			}
			return ctxdial.Dial(ctx, &net.Dialer{}, network, addr)
		},
	}}
	// The body makes the request carry a Content-Length, without which PyTorch 2.6 never answers.
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/handler/"+handler, http.NoBody)
	if err != nil {
		return nil
	}
	response, err := client.Do(request)
	if err != nil {
		return nil
	}
	defer func() { _ = response.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(response.Body, maxRecorder))
	if err != nil || response.StatusCode != http.StatusOK {
		return nil
	}
	d, err := torchdump.Parse(b)
	if err != nil {
		return nil
	}
	return d
}

// reported reads what a process says of itself.
func reported(proc string, pid int) verdict.Reported {
	page, found := progresspage.Find(proc, pid, ownPID(proc, pid))
	if !found {
		return verdict.Reported{}
	}
	r := verdict.Reported{Steps: page.Steps, StepAge: progresspage.Age(page.Stepped)}
	if s, in := page.Innermost(); in {
		r.Section, r.SectionAge = s.Name, progresspage.Age(s.Since)
	}
	return r
}

// ReportedBy returns what a process on this host says of itself.
func ReportedBy(pid int) verdict.Reported { return reported("/proc", pid) }

// Reported returns what each rank of a job says of itself.
func Reported(j Job) []verdict.Reported {
	all := make([]verdict.Reported, len(j.Ranks))
	for i, r := range j.Ranks {
		all[i] = reported("/proc", r.PID)
	}
	return all
}

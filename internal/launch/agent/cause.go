// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net"
	"regexp"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/launch/joblog"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
)

const (
	// lastOutputTime bounds the wait for the last output of a worker that has ended: a child of it may keep its output open.
	lastOutputTime = 50 * time.Millisecond
	// lookupTime bounds the look for a name that a worker could not reach.
	lookupTime = 300 * time.Millisecond
)

// explain says why a worker has ended.
func (a *attempt) explain(w *worker) postmortem.Cause {
	d := postmortem.Death{Code: w.exit.Code, RSS: w.exit.RSS, Sent: w.sent, Nodes: a.place.nodes}
	if d.Code == 0 {
		return postmortem.Explain(d)
	}
	if w.err != nil {
		select {
		case <-w.err.Done():
		case <-time.After(lastOutputTime):
		}
		d.Stderr = w.err.Last()
	}
	d.ErrorFile = a.job.run.Error(a.place.attempt, w.local)
	if postmortem.BySIGKILL(d) && a.job.memory.Take() {
		d.OutOfMemory, d.Limit = true, a.job.memory.Limit()
	}
	d.Output = a.unwritable(w)
	cause := postmortem.Explain(d)
	cause.Words += unresolvedHost(cause.Words)
	return cause
}

// plainReason returns an error without the operation and the path.
func reason(err error) string {
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number.Error()
	}
	return err.Error()
}

// unwritable says why what a worker prints cannot be written, "" if it can.
func (a *attempt) unwritable(w *worker) string {
	for _, p := range []*joblog.Pipe{w.out, w.err} {
		if p == nil {
			continue
		}
		if dir := p.Full(); dir != "" {
			return "no space left on device for its log files in " + dir
		}
	}
	if err := a.job.screen.out.Err(); err != nil {
		return "the launcher's standard output cannot be written: " + reason(err)
	}
	if err := a.job.screen.err.Err(); err != nil {
		return "the launcher's standard error output cannot be written: " + reason(err)
	}
	return ""
}

// connectFailure is how PyTorch says that it could not connect to a store.
var connectFailure = regexp.MustCompile(`trying to connect to \(([^ ,()]+), \d+\)`)

// unresolvedHost adds what PyTorch leaves out: that it could not connect because the name of the host does not exist.
func unresolvedHost(words string) string {
	m := connectFailure.FindStringSubmatch(words)
	if m == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	_, err := net.DefaultResolver.LookupHost(ctx, m[1])
	if ctxdial.UnknownHost(err) {
		return "; the name " + m[1] + " does not resolve on this host"
	}
	return ""
}

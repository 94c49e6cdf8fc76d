// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupfail

import (
	"slices"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// listen starts the store of a run, or fails the run and returns nil.
func listen(p *failpointtest.ProcessRun) *tcpstore.Server {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		p.Errorf("%v", err)
		return nil
	}
	return server
}

// wake ends a process to which something happened, or lets it go on if it was stopped: the world that it belongs to is gone, and it must
// find out. It may even have what it needs of the others for its operation.
func wake(p *failpointtest.ProcessRun, c *process, rank int, event string) {
	if event != failpointtest.StopEvent {
		_ = c.cmd.Process.Kill()
		c.wait(p, rank)
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGCONT)
	if c.wait(p, rank); c.result == nil {
		p.Errorf("rank %d came back and said nothing", rank)
	}
}

// judgeFormed is the oracle of what every rank that is left says, whatever happened. It reports whether it said something.
func judgeFormed(p *failpointtest.ProcessRun, who string, res *result) bool {
	if res == nil {
		p.Errorf("%s has said nothing", who)
		return false
	}
	if res.Again != "" {
		p.Errorf("%s could not form another group: %s", who, res.Again)
	}
	return true
}

// judgeLoss is the oracle of a rank whose group could not be formed, or failed, because something happened to the ranks hit, the last time
// at event: it is of no importance when if that is zero.
func judgeLoss(p *failpointtest.ProcessRun, who string, transport group.Transport, res *result, hit []int, event time.Time) {
	code := cohort.Code(res.Code)
	stops := slices.ContainsFunc(p.Victims, func(f failpointtest.Fate) bool { return f.Event == failpointtest.StopEvent })
	if stops && transport == group.Gloo && code == cohort.DeadlineExceeded && res.Rank == cohort.NoRank {
		return // its wire has no heartbeat
	}
	// A rank that is dead while a group forms is unavailable, or missing when the time is over; in a group it is lost.
	if !slices.Contains([]cohort.Code{cohort.PeerLost, cohort.Unavailable, cohort.DeadlineExceeded}, code) ||
		!slices.Contains(hit, int(res.Rank)) {
		p.Errorf("%s: %s (code %v, rank %d), and something happened to %v", who, res.Err, code, res.Rank, hit)
	}
	bound := formLimit + lostSoon
	if stops {
		bound += heartbeat
	}
	if took := res.Ended.Sub(event); !event.IsZero() && took > bound {
		p.Errorf("%s noticed after %v", who, took)
	}
}

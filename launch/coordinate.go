// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/internal/launchcore"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// A job with members that change: the workers form a group through a coordinator, which runs here, over the job's store. When one
// of them dies the launcher tells the coordinator, which gives its place to a spare; the others go on.

// checkMembers checks what concerns a group whose members change.
func (c Config) checkMembers() error {
	switch {
	case c.MaxMembers == 0 && c.MinMembers == 0:
		return nil
	case c.MinMembers < 1 || c.MaxMembers < c.MinMembers:
		return fmt.Errorf("launch: %d to %d members: the first must be at least 1 and at most the second", c.MinMembers, c.MaxMembers)
	case c.MaxMembers > c.Workers:
		return fmt.Errorf("launch: %d members, but %d workers: those beyond the members are spares (--nproc-per-node %d for one spare)", c.MaxMembers, c.Workers, c.MaxMembers+1)
	case c.MaxNodes > 1:
		return errors.New("launch: --members is for a job on one node; on several, run \"cohort store serve\" and \"cohort coordinate\", and start the members yourself")
	case c.NoShim:
		return errors.New("launch: --members needs a store that survives every worker, and with --no-shim rank 0 hosts it")
	case c.HangTimeout > 0:
		return errors.New("launch: --members and --hang-timeout exclude each other: a spare waits all the time, and a member that stands still is replaced")
	}
	return nil
}

// spares is how many workers may fail.
func (c Config) spares() int {
	if c.MaxMembers == 0 {
		return 0
	}
	return c.Workers - c.MinMembers
}

// coordination is a coordinator that runs. A nil one does nothing.
type coordination struct {
	coordinator *elastic.Coordinator
	client      *tcpstore.Client
	first       int // the member that is local rank 0
	stop        context.CancelFunc
	ended       chan struct{}
}

// leftBehind are workers that have not been heard of at the end of the job.
type leftBehind []launchcore.Worker

// coordinate starts the coordinator if the job has one.
func (a *attempt) coordinate() (err error) {
	c := a.job.cfg
	if c.MaxMembers == 0 {
		return nil
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(a.job.asked))
	k := &coordination{stop: stop, ended: make(chan struct{})}
	defer func() {
		if err != nil {
			stop()
			if k.client != nil {
				_ = k.client.Close()
			}
		}
	}()
	if k.client, err = tcpstore.Dial(ctx, a.place.address()); err != nil {
		return err
	}
	warnings := slog.New(slog.NewTextHandler(a.job.screen.err, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime}))
	if k.coordinator, err = elastic.New(k.client, c.MinMembers, c.MaxMembers, elastic.WithLogger(warnings)); err != nil {
		return err
	}
	if k.first, err = k.coordinator.Reserve(ctx, c.Workers); err != nil {
		return err
	}
	a.coordination = k
	go func() { // joined by close
		defer close(k.ended)
		if err := k.coordinator.Run(ctx); err != nil && ctx.Err() == nil {
			a.job.screen.say("%v", err)
		}
		var silent leftBehind
		for _, member := range k.coordinator.Silent() {
			silent = append(silent, launchcore.Worker(member-k.first))
		}
		if len(silent) == 0 {
			return
		}
		select {
		case a.inbox <- silent:
		case <-ctx.Done():
		}
	}()
	return nil
}

func withoutTime(_ []string, attr slog.Attr) slog.Attr {
	if attr.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return attr
}

// lost tells the coordinator that a worker has ended.
func (k *coordination) lost(local int) {
	if k != nil {
		k.coordinator.Lost(k.first + local)
	}
}

// close ends the coordinator.
func (k *coordination) close() {
	if k == nil {
		return
	}
	k.stop()
	<-k.ended
	_ = k.client.Close()
}

// goOn says that the job goes on without a worker.
func (a *attempt) goOn(w *worker, spares int) {
	left := 0
	for _, other := range a.workers {
		if other.exit == nil {
			left++
		}
	}
	more := "the next failure ends the job"
	if spares > 0 {
		more = fmt.Sprintf("%d more may fail", spares)
	}
	a.job.screen.say("rank %d %s; the job goes on with %d workers, and %s", w.rank, w.cause.Words, left, more)
}

// end kills workers that hang when the job is over.
func (a *attempt) end(silent leftBehind) {
	silent = slices.DeleteFunc(silent, func(w launchcore.Worker) bool {
		return int(w) < 0 || int(w) >= len(a.workers) || a.workers[w].exit != nil
	})
	for _, w := range silent {
		a.job.screen.say("rank %d has given no sign of life, and the group is done without it: it is killed", a.workers[w].rank)
	}
	if len(silent) > 0 {
		a.send(silent, launchcore.SIGKILL)
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// A job with members that change: the workers form a group through a coordinator, which runs here, over the job's store. When one
// of them dies the launcher notifies the coordinator, which gives its place to a spare; the others go on.

// coordination is what a launcher has to do with a coordinator: it runs one, or starts members for one elsewhere. A nil one does nothing.
type coordination struct {
	coordinator *elastic.Coordinator // nil if it runs elsewhere
	starter     *elastic.Starter
	client      *tcpstore.Client
	first       elastic.ID // the member that is local rank 0
	shared      bool       // other launchers have members too
	stop        context.CancelFunc
	ended       chan struct{} // closed when the job has, or this launcher has closed it
	notifying   sync.WaitGroup
	ctx         context.Context //nolint:containedctx // of notifications in the background
}

// silentWorkers are workers that have sent nothing at the end of the job.
type silentWorkers []launchcore.Worker

// coordinate starts the coordinator if the job has one, or finds the one that it has.
func (a *attempt) coordinate() (err error) {
	c := a.job.cfg
	if c.MaxMembers == 0 {
		return nil
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(a.job.asked))
	k := &coordination{stop: stop, ended: make(chan struct{}), ctx: ctx}
	defer func() {
		if err != nil {
			stop()
			if k.client != nil {
				_ = k.client.Close()
			}
		}
	}()
	finding, found := context.WithTimeout(a.job.asked, time.Minute) // a store listens there
	defer found()
	if k.client, err = tcpstore.Dial(finding, a.place.asked()); err != nil {
		return err
	}
	if k.starter, err = elastic.NewStarter(k.client); err != nil {
		return err
	}
	if a.store != nil {
		warnings := slog.New(slog.NewTextHandler(a.job.screen.err, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime}))
		if k.coordinator, err = elastic.New(k.client, c.MinMembers, c.MaxMembers, elastic.WithLogger(warnings)); err != nil {
			return err
		}
	}
	if k.first, err = k.starter.Reserve(finding, c.Workers); err != nil {
		return err
	}
	if k.shared = c.spread(); k.shared {
		if _, err = k.client.Add(finding, launchersKey, 1); err != nil {
			return err
		}
	}
	a.coordination, a.place.firstMember = k, k.first
	go func() { // joined by close
		defer close(k.ended)
		var silent silentWorkers
		for _, member := range k.wait(a.job.screen.logf) {
			silent = append(silent, launchcore.Worker(member-k.first))
		}
		if len(silent) == 0 {
			return
		}
		select {
		case a.inspectors.inbox <- silent:
		case <-ctx.Done():
		}
	}()
	return nil
}

// wait runs the coordinator, or waits for the end of the job that another one coordinates. It returns the members that had sent
// nothing.
func (k *coordination) wait(say func(format string, args ...any)) []elastic.ID {
	if k.coordinator == nil {
		silent, _ := k.starter.Ended(k.ctx) // without the store the workers fail by themselves
		return silent
	}
	if err := k.coordinator.Run(k.ctx); err != nil && k.ctx.Err() == nil {
		say("%v", err)
	}
	return k.coordinator.Silent()
}

func withoutTime(_ []string, attr slog.Attr) slog.Attr {
	if attr.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return attr
}

// lost notifies the coordinator that a worker has ended.
func (k *coordination) lost(local int) {
	switch {
	case k == nil:
	case k.coordinator != nil:
		k.coordinator.Lost(k.first + elastic.ID(local))
	default:
		k.notifying.Go(func() { _ = k.starter.Lost(k.ctx, k.first+elastic.ID(local)) }) // else it is left out for its silence
	}
}

// launchersKey counts the launchers of a job whose members change, those that are there.
const launchersKey = "cohort/launch/launchers"

// leaveTime is how long a launcher that hosts the store waits for the others when the job has ended: their workers read there how it did.
const leaveTime = 10 * time.Second

// close ends the coordinator. One that other nodes need ends when the job does.
func (k *coordination) close(j *Job) {
	if k == nil {
		return
	}
	k.notifying.Wait()
	if k.shared {
		left, cancel := context.WithTimeout(k.ctx, leaveTime)
		others, err := k.client.Add(left, launchersKey, -1)
		cancel()
		if err == nil && others > 0 && k.coordinator != nil && j.end.Signal == 0 {
			k.awaitOthers(j)
		}
	}
	k.stop()
	<-k.ended
	_ = k.client.Close()
}

// awaitOthers keeps store and coordinator for the other nodes.
func (k *coordination) awaitOthers(j *Job) {
	j.screen.logf("the workers of this node have ended; the others need its store and its coordinator")
	var end <-chan time.Time
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	ended := k.ended
	for {
		select {
		case <-ended:
			end, ended = time.After(leaveTime), nil
		case <-end:
			return
		case <-look.C:
			if others, err := k.client.Add(k.ctx, launchersKey, 0); err != nil || others <= 0 {
				return
			}
		case s := <-j.signals:
			if _, ending := j.setSignal(s); ending {
				return
			}
		case <-j.asked.Done():
			return
		}
	}
}

// reportSpared prints that the job goes on without a worker.
func (a *attempt) reportSpared(w *worker, spares int) {
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
	a.job.screen.logf("rank %d %s; the job goes on with %d workers, and %s", w.rank, w.cause.Words, left, more)
}

// killSilent kills workers that hang when the job is over.
func (a *attempt) killSilent(silent silentWorkers) {
	silent = slices.DeleteFunc(silent, func(w launchcore.Worker) bool {
		return int(w) < 0 || int(w) >= len(a.workers) || a.workers[w].exit != nil
	})
	for _, w := range silent {
		a.job.screen.logf("rank %d has sent no heartbeat, and the group has finished without it: it is killed", a.workers[w].rank)
	}
	if len(silent) > 0 {
		a.send(silent, launchcore.SIGKILL, true)
	}
}

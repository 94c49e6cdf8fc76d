// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

// This file keeps in a store which launcher hosts the rendezvous of a job: a key holds its address. When that launcher is lost,
// another takes the key over; when the job has ended, the key stays and is empty.

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

const (
	op = "launch"
	// storeTime bounds each question to the store.
	storeTime = 5 * time.Second
	// maxAnew is how often a store may be started anew while it is asked.
	maxAnew = 3
	// remindTime is how often the host looks whether the store still knows it.
	remindTime = time.Second
)

// HostLease is a launcher's view of the key.
type HostLease struct {
	store *tcpstore.Client
	at    string // the address of the store
	name  string
	sleep sleepDetector
	quit  chan struct{}
	done  sync.WaitGroup
}

// NewHostLease returns the key of a job in the store at an address. It closes the store. A launcher that did not run
// for silence was declared dead by the others.
func NewHostLease(store *tcpstore.Client, at, job string, silence time.Duration) *HostLease {
	k := &HostLease{
		store: store, at: at, name: "cohort/run/" + job + "/host",
		sleep: sleepDetector{limit: silence, now: sinceBoot}, quit: make(chan struct{}),
	}
	k.sleep.look()
	k.done.Go(k.watch)
	return k
}

// Close lets go of the store.
func (k *HostLease) Close() {
	close(k.quit)
	k.done.Wait()
	_ = k.store.Close()
}

// watch notices when this process did not run.
func (k *HostLease) watch() {
	tick := time.NewTicker(max(time.Millisecond, k.sleep.limit/4))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			k.sleep.look()
		case <-k.quit:
			return
		}
	}
}

// Current returns the address of the host, "" if there is none. tookPart says that this launcher has run workers of the job: then it
// is refused where the job has ended without it, or may have.
func (k *HostLease) Current(ctx context.Context, tookPart bool) (addr string, err error) {
	k.sleep.look()
	addr, known, err := k.read(ctx)
	switch {
	case err == nil && addr != "":
		k.sleep.forget() // whatever became of the job meanwhile, the store knows it
		return addr, nil
	case err != nil || !tookPart:
		return "", err
	case known: // to begin anew would be to run it twice
		return "", cohort.New(op, cohort.Replaced, "the job has ended without this node, which was cut off from it")
	}
	return "", k.mayAnnounce()
}

// mayAnnounce checks that this launcher may write to a restarted, empty store who hosts the job.
func (k *HostLease) mayAnnounce() error {
	if !k.sleep.look() {
		return nil
	}
	return cohort.Newf(op, cohort.Replaced,
		"this launcher did not run for longer than %v, and the store at %s was started anew meanwhile: the others may have gone on "+
			"with the job, or ended it, without this node", k.sleep.limit, k.at)
}

// Claim makes a launcher the host in place of another, "" for none, and returns who is.
func (k *HostLease) Claim(ctx context.Context, before, mine string) (string, error) {
	won, err := k.ask(ctx, func(ctx context.Context) ([]byte, error) {
		return k.store.CompareAndSet(ctx, k.name, []byte(before), []byte(mine))
	})
	return string(won), err
}

// Forget empties the key of a host that has done its work, so that a later job of this name begins anew. The key stays: by it a
// host that was cut off and replaced sees that the job is done.
func (k *HostLease) Forget(ctx context.Context, mine string) {
	_, _ = k.ask(ctx, func(ctx context.Context) ([]byte, error) {
		return k.store.CompareAndSet(ctx, k.name, []byte(mine), nil)
	})
}

// Holds checks that this launcher is still the one that was chosen: one that was cut off may have been replaced. A store that was
// started anew has no key at all and gets it again.
func (k *HostLease) Holds(ctx context.Context, mine string) error {
	k.sleep.look()
	now, known, err := k.read(ctx)
	if err == nil && !known {
		if err = k.mayAnnounce(); err == nil {
			now, err = k.Claim(ctx, "", mine)
		}
	}
	switch {
	case err != nil:
		return err
	case now == mine:
		k.sleep.forget() // no other launcher has taken its place meanwhile
		return nil
	case now == "":
		return cohort.New(op, cohort.Replaced, "another launcher took over the job, which has ended")
	}
	return cohort.Newf(op, cohort.Replaced, "this node was declared dead: the launcher at %s hosts the rendezvous now", now)
}

// Remind writes into a restarted store who hosts the job, so that a node which joins later finds it. It returns nil when ctx ends,
// and an error when this launcher is not the host any more.
func (k *HostLease) Remind(ctx context.Context, mine string) error {
	tick := time.NewTicker(remindTime)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := k.Holds(ctx, mine); errors.Is(err, cohort.Replaced) { // a lost store may return
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// read returns the address of the host, "" if there is none, and whether the store has ever known one.
func (k *HostLease) read(ctx context.Context) (addr string, known bool, err error) {
	v, err := k.ask(ctx, func(ctx context.Context) (v []byte, err error) {
		if known, err = k.store.Check(ctx, k.name); err != nil || !known {
			return nil, err
		}
		return k.store.Get(ctx, k.name)
	})
	return string(v), known, err
}

func (k *HostLease) ask(ctx context.Context, f func(context.Context) ([]byte, error)) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	v, err := f(ctx)
	for n := 0; errors.Is(err, cohort.Replaced) && n < maxAnew; n++ { // it was started anew, and has forgotten everything
		if _, _, err = k.store.Hello(ctx); err == nil {
			v, err = f(ctx)
		}
	}
	switch {
	case err == nil:
		return v, nil
	case errors.Is(err, cohort.Replaced): // that concerns the store, and is not a launcher that was replaced
		return nil, cohort.Newf(op, cohort.Unavailable,
			"the store at %s, through which the launchers meet, is started anew again and again: %v", k.at, err)
	}
	e := cohort.Wrap(op, cohort.Unavailable, err)
	e.Detail = "the store at " + k.at + ", through which the launchers meet: " + err.Error()
	return nil, e
}

// sleepDetector notices that this process did not run for a time: it was stopped, or its machine slept.
type sleepDetector struct {
	limit time.Duration
	now   func() time.Duration // which goes on in a machine that sleeps, and which cannot be set
	mu    struct {
		sync.Mutex
		last  time.Duration // 0: none
		slept bool
	}
}

// look reports whether the process has slept for longer than the limit. A process that sleeps for less than that
// between two checks counts as awake.
func (s *sleepDetector) look() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, last := s.now(), s.mu.last
	s.mu.last = now
	if last != 0 && now-last > s.limit {
		s.mu.slept = true
	}
	return s.mu.slept
}

// forget says that the sleep has changed nothing. One that was not checked yet is not forgotten.
func (s *sleepDetector) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.slept = false
}

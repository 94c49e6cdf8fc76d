// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/nodehost"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// Where the endpoint is a store of cohort ("cohort store serve") and no launcher, the launchers choose through it one of
// themselves to host the rendezvous: a key holds its address. When it is gone, another takes the key over, and the nodes
// that are left begin a new attempt with it.

const (
	// greetTime is how long a launcher that hosts a rendezvous has to say something before it is taken for a store.
	greetTime = 300 * time.Millisecond
	// storeTime bounds each question to the store.
	storeTime = 5 * time.Second
	// remindTime is how often the host looks whether the store still knows it.
	remindTime = time.Second
)

// election is a launcher's part in the choice.
type election struct {
	job   *job
	store *tcpstore.Client
	key   string
	own   string // the address of this node: as the user gave it, or as the store sees it
}

// errHostLost says that the launcher that hosts the rendezvous is gone and another one may take its place.
var errHostLost = dist.New(op, dist.PeerLost, "the launcher that hosts the rendezvous is gone")

// findStore returns the election through the store at the endpoint, nil if something else listens there. c is a
// connection to it, which says how this node is seen.
func (j *job) findStore(c net.Conn) (*election, error) {
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	if err != nil {
		return nil, unavailable("the address of this node", err)
	}
	ctx, cancel := context.WithTimeout(j.asked, storeTime)
	defer cancel()
	client, err := tcpstore.Dial(ctx, j.cfg.Endpoint)
	if err != nil {
		return nil, nil //nolint:nilnil // no store, or none that can be talked to: the dialogue of launchers will tell
	}
	if _, err := client.Stats(ctx); err != nil {
		_ = client.Close()
		return nil, dist.Newf(op, dist.NotSupported, "what listens at %s is neither a launcher nor a store of \"cohort store serve\"; torchrun and cohort run cannot launch parts of one job: %w", j.cfg.Endpoint, err)
	}
	return &election{job: j, store: client, key: "cohort/run/" + j.cfg.RunID + "/host", own: cmp.Or(j.cfg.LocalAddr, host)}, nil
}

// run takes part in the job, as its host or not, until it has ended.
func (e *election) run() error {
	defer func() { _ = e.store.Close() }()
	lost := ""
	for {
		h, addr, err := e.choose(lost)
		if err != nil {
			return err
		}
		err = e.attend(h, addr)
		if h != nil {
			h.Close()
		}
		if !errors.Is(err, errHostLost) {
			if h != nil {
				e.forget(addr)
			}
			return err
		}
		lost = addr
		e.job.screen.say("the launcher that hosts the rendezvous at %s is gone; another one takes its place", addr)
	}
}

// attend takes part with the host at addr until it is gone or the job has ended.
func (e *election) attend(h *nodehost.Host, addr string) error {
	j := e.job
	conn, err := j.connect(addr, 2*j.cfg.Silence)
	if err != nil {
		if errors.Is(err, dist.Unavailable) {
			return errHostLost
		}
		return err
	}
	if h != nil {
		reminding, stop := context.WithCancel(j.asked)
		var ended sync.WaitGroup
		ended.Go(func() { e.remind(reminding, addr) })
		defer ended.Wait()
		defer stop()
	}
	m := newMember(j, conn, addr)
	m.replaceable = true
	defer m.close()
	err = m.run()
	j.tellSignal(h)
	return err
}

// choose returns the address of the host, and the host itself if it is this launcher.
func (e *election) choose(lost string) (*nodehost.Host, string, error) {
	for {
		current, known, err := e.current(e.job.asked)
		if err == nil && known && current == "" && e.job.seen.attempt > 0 { // to begin anew would be to run it twice
			err = dist.New(op, dist.Replaced, "the job has ended without this node, which was cut off from it")
		}
		if err != nil {
			return nil, "", err
		}
		if current != "" && current != lost {
			return nil, current, nil
		}
		h, err := nodehost.Listen(e.job.forHost(), net.JoinHostPort(e.own, "0"))
		if err != nil {
			return nil, "", unavailable("a rendezvous on "+e.own, err)
		}
		mine := h.Addr()
		moment.At("launch.elect.set")
		won, err := e.claim(e.job.asked, current, mine)
		if err == nil && won == mine {
			h.Confirm(func() error { return e.holds(e.job.asked, mine) })
			return h, mine, nil
		}
		h.Close()
		if err != nil {
			return nil, "", err
		}
	}
}

// claim makes this launcher the host in place of another, "" for none, and returns who is.
func (e *election) claim(ctx context.Context, before, mine string) (string, error) {
	won, err := e.ask(ctx, func(ctx context.Context) ([]byte, error) {
		return e.store.CompareAndSet(ctx, e.key, []byte(before), []byte(mine))
	})
	return string(won), err
}

// forget empties the key of a host that has done its work, so that a later job of this name begins anew. The key stays: by it a
// host that was cut off and replaced sees that the job is done.
func (e *election) forget(mine string) {
	_, _ = e.ask(e.job.asked, func(ctx context.Context) ([]byte, error) {
		return e.store.CompareAndSet(ctx, e.key, []byte(mine), nil)
	})
}

// holds checks that this launcher is still the one that was chosen: one that was cut off may have been replaced. A store that was
// started anew has no key at all and is told again.
func (e *election) holds(ctx context.Context, mine string) error {
	now, known, err := e.current(ctx)
	if err == nil && !known {
		now, err = e.claim(ctx, "", mine)
	}
	switch {
	case err != nil || now == mine:
		return err
	case now == "":
		return dist.New(op, dist.Replaced, "another launcher took over the job, which has ended")
	}
	return dist.Newf(op, dist.Replaced, "the launcher at %s hosts the rendezvous now", now)
}

// remind tells a store that was started anew who hosts the job, so that a node which comes later finds it.
func (e *election) remind(ctx context.Context, mine string) {
	tick := time.NewTicker(remindTime)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = e.holds(ctx, mine) // the host asks by itself before each attempt
		case <-ctx.Done():
			return
		}
	}
}

// current returns the address of the host, "" if there is none, and whether the store has ever known one.
func (e *election) current(ctx context.Context) (addr string, known bool, err error) {
	v, err := e.ask(ctx, func(ctx context.Context) (v []byte, err error) {
		if known, err = e.store.Check(ctx, e.key); err != nil || !known {
			return nil, err
		}
		return e.store.Get(ctx, e.key)
	})
	return string(v), known, err
}

func (e *election) ask(ctx context.Context, f func(context.Context) ([]byte, error)) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	v, err := f(ctx)
	if errors.Is(err, dist.Replaced) { // it was started anew, and has forgotten everything
		if _, _, err = e.store.Hello(ctx); err == nil {
			v, err = f(ctx)
		}
	}
	if err != nil {
		return nil, unavailable("the store at "+e.job.cfg.Endpoint+", through which the launchers meet", err)
	}
	return v, nil
}

// connect connects to a rendezvous. It tries until somebody is there, a signal comes, or limit is over.
func (j *job) connect(addr string, limit time.Duration) (net.Conn, error) {
	over := time.NewTimer(limit)
	defer over.Stop()
	said := false
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		ctx, cancel := context.WithTimeout(j.asked, 5*time.Second)
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		cancel()
		if err == nil {
			return nodehost.Greeted(c), nil
		}
		if !said && pause > 500*time.Millisecond {
			said = true
			j.screen.say("waiting for the rendezvous at %s: %v", addr, err)
		}
		select {
		case <-time.After(pause):
		case s := <-j.signals:
			if n, ok := s.(syscall.Signal); ok && j.cfg.ending[int(n)] {
				j.report.Signal = int(n)
				return nil, errEnded
			}
		case <-j.asked.Done():
			return nil, dist.Ended(j.asked, op)
		case <-over.C:
			return nil, dist.Newf(op, dist.Unavailable, "no rendezvous at %s within %v: nobody answers: %w", addr, limit, err)
		}
	}
}

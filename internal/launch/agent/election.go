// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// Where the endpoint is a store of cohort ("cohort store serve") and no launcher, the launchers choose through it one of
// themselves to host the rendezvous: a key holds its address. When it is lost, another takes the key over, and the nodes
// that are left begin a new attempt with it.

const (
	// greetingTime is how long a launcher that hosts a rendezvous has to send something before it is treated as a store.
	greetingTime = 300 * time.Millisecond
	// storeTime bounds the look for a store.
	storeTime = 5 * time.Second
	// maxRefused is after how many refused connections, over a second, a host is declared lost. Its job may run: who takes its place
	// ends that.
	maxRefused = 7
)

// election is a launcher's part in the choice.
type election struct {
	job *Job
	key *nodecoord.HostLease
	own string // the address of this node: as the user gave it, or as the store sees it
}

// errHostLost says that the launcher that hosts the rendezvous is lost and another one may take its place.
var errHostLost = cohort.New(op, cohort.PeerLost, "the launcher that hosts the rendezvous is lost")

// findStore returns the election through the store at the endpoint, nil if something else listens there. c is a
// connection to it, which says how this node is seen.
func (j *Job) findStore(c net.Conn) (*election, error) {
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	if err != nil {
		return nil, unavailable("the address of this node", err)
	}
	ctx, cancel := context.WithTimeout(j.asked, storeTime)
	defer cancel()
	client, err := tcpstore.Dial(ctx, j.cfg.Endpoint)
	if err != nil {
		return nil, nil //nolint:nilnil // no store, or none that can be talked to: the dialogue of launchers will show it
	}
	if _, err := client.Stats(ctx); err != nil {
		_ = client.Close()
		return nil, cohort.Newf(op, cohort.NotSupported,
			"what listens at %s is neither a launcher nor a store of \"cohort store serve\"; torchrun and cohort run cannot launch "+
				"parts of one job: %w", j.cfg.Endpoint, err)
	}
	return &election{
		job: j, key: nodecoord.NewHostLease(client, j.cfg.Endpoint, j.cfg.RunID, j.cfg.Silence),
		own: cmp.Or(j.cfg.LocalAddr, host),
	}, nil
}

// run takes part in the job, as its host or not, until it has ended.
func (e *election) run() error {
	defer e.key.Close()
	lost := ""
	for {
		h, addr, err := e.choose(lost)
		if err != nil {
			return err
		}
		why, err := e.attend(h, addr)
		replaced := e.leave(h, "") // if it has not connected to itself at all
		if h != nil {
			h.Close()
		}
		if !errors.Is(err, errHostLost) {
			if h != nil && !replaced {
				e.key.Forget(context.WithoutCancel(e.job.asked), addr)
			}
			return err
		}
		lost = addr
		e.job.screen.logf("the launcher that hosts the rendezvous at %s %s; another one takes its place", addr, cmp.Or(why, "is lost"))
	}
}

// attend takes part with the host at addr until it is lost or the job has ended. why is its reason for leaving, "" for nothing.
func (e *election) attend(h *nodecoord.Host, addr string) (why string, err error) {
	j := e.job
	conn, err := j.connect(addr, 2*j.cfg.Silence, true, j.secured(addr))
	if err != nil {
		switch {
		case !errors.Is(err, cohort.Unavailable):
			return "", err
		case loopback(addr) && !loopback(net.JoinHostPort(e.own, "")):
			return "", cohort.Newf(op, cohort.Unavailable,
				"the launcher that hosts the rendezvous is known as %s, which only its own machine reaches: start it with "+
					"--local-addr and an address that all nodes reach: %w", addr, err)
		}
		return "", errHostLost
	}
	if h != nil {
		reminding, stop := context.WithCancel(j.asked)
		var ended sync.WaitGroup
		ended.Go(func() {
			if replaced := e.key.Remind(reminding, addr); replaced != nil {
				h.End(replaced)
			}
		})
		defer ended.Wait()
		defer stop()
	}
	m, err := j.takePart(conn, addr, func(m *member) { m.replaceable, m.hosts = true, h != nil })
	defer m.close()
	if errors.Is(err, errHostLost) && m.dismissed == nil { // not a host of another job, whose connection may be open still
		why = m.left
	}
	e.leave(h, m.wire.LocalAddr().String()) // before it sees its own connection end, and takes this node for one that is lost
	return why, err
}

// loopback reports whether the host of an address is the machine that asks.
func loopback(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// leave has other launchers take over from a host that the user has ended. It reports whether there are any.
func (e *election) leave(h *nodecoord.Host, own string) bool {
	reason := e.job.endedBy()
	return h != nil && reason != "" && h.Leave(reason, own)
}

// choose returns the address of the host, and the host itself if it is this launcher.
func (e *election) choose(lost string) (*nodecoord.Host, string, error) {
	for {
		current, err := e.key.Current(e.job.asked, e.job.seen.attempt > 0)
		if err != nil {
			return nil, "", err
		}
		if current != "" && current != lost {
			return nil, current, nil
		}
		h, err := nodecoord.Listen(e.job.forHost(), net.JoinHostPort(e.own, "0"))
		if err != nil {
			return nil, "", unavailable("a rendezvous on "+e.own, err)
		}
		mine := h.Addr()
		failpoint.At("agent.elect.set")
		won, err := e.key.Claim(e.job.asked, current, mine)
		if err == nil && won == mine {
			e.job.announceProtection()
			h.Confirm(func() error { return e.key.Holds(e.job.asked, mine) })
			return h, mine, nil
		}
		h.Close()
		if err != nil {
			return nil, "", err
		}
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
)

// errEnded says that a signal ended the wait for other nodes.
var errEnded = cohort.New(op, cohort.Aborted, "ended by a signal while waiting for other nodes")

// nodes runs a job on several nodes.
func (j *Job) nodes() error {
	var h *nodecoord.Host
	if j.cfg.hosts(j.asked) {
		var err error
		if h, err = nodecoord.Listen(j.forHost(), j.cfg.Endpoint); err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			return unavailable("the rendezvous at "+j.cfg.Endpoint, err)
		}
	}
	if h != nil {
		j.announceProtection()
		defer h.Close()
	}
	conn, e, err := j.approach(h != nil)
	switch {
	case err != nil:
		return err
	case e != nil:
		return e.run()
	}
	m, err := j.takePart(conn, j.cfg.Endpoint, func(m *member) { m.hosts = h != nil })
	defer m.close()
	j.announceEnd(h)
	return err
}

// errStore says that a store through which the launchers choose a host is at the endpoint.
var errStore = errors.New("a store is at the endpoint")

// approach connects to what listens at the endpoint: a launcher that hosts the rendezvous, or a store through which one is chosen.
func (j *Job) approach(hosts bool) (net.Conn, *election, error) {
	var e *election
	looked := hosts
	conn, err := j.connect(j.cfg.Endpoint, j.cfg.JoinTimeout, false, func(raw net.Conn) (net.Conn, error) {
		c, err := j.secure(raw, j.cfg.Endpoint)
		if looked || err != nil && !errors.Is(err, errSilent) || err == nil && (j.creds != nil || greets(c)) {
			return c, err
		}
		looked = true
		var failed error
		if e, failed = j.findStore(raw); failed != nil || e != nil {
			_ = raw.Close()
			return nil, cmp.Or(failed, errStore)
		}
		return c, err
	})
	if errors.Is(err, errStore) {
		err = nil
	}
	return conn, e, err
}

// secured returns how a connection to the host at an address is opened.
func (j *Job) secured(addr string) func(net.Conn) (net.Conn, error) {
	return func(raw net.Conn) (net.Conn, error) { return j.secure(raw, addr) }
}

const (
	// maxDropped is how often a connection may end before the request to join is answered: the host drops connections when strangers make
	// too many.
	maxDropped = 12
	// maxDroppedPause bounds the pause before the next one, which doubles.
	maxDroppedPause = time.Second
)

// errDropped says that the host has ended the connection before it answered the request to join.
var errDropped = cohort.New(op, cohort.PeerLost, "the rendezvous has ended the connection")

// takePart joins the job whose host is at the other end of a connection, and takes part in it. The member is returned for the caller to
// close.
func (j *Job) takePart(conn net.Conn, addr string, prepare func(*member)) (*member, error) {
	pause := 10 * time.Millisecond
	for n := 0; ; n++ {
		m := newMember(j, conn, addr)
		prepare(m)
		err := m.run()
		if !errors.Is(err, errDropped) {
			return m, err
		}
		if n == maxDropped {
			return m, m.hostLost()
		}
		select {
		case <-time.After(pause):
		case <-j.asked.Done():
		}
		pause = min(2*pause, maxDroppedPause)
		switch again, failed := j.connect(addr, j.cfg.Silence, true, j.secured(addr)); {
		case errors.Is(failed, cohort.Unavailable):
			return m, m.hostLost()
		case failed != nil:
			return m, failed
		default:
			m.close()
			conn = again
		}
	}
}

// greets reports whether a launcher is at the other end: it says at once that it is there, and a store says nothing.
func greets(c net.Conn) bool {
	first, ok := c.(*nodecoord.Greeting)
	return ok && first.Wait(greetingTime) == nil
}

// forHost is what the host of the rendezvous needs to know.
func (j *Job) forHost() nodecoord.Config {
	c := j.cfg
	return nodecoord.Config{
		RunID: c.RunID, Rules: c.rules(), StoreAddr: c.LocalAddr, StorePort: c.StorePort,
		JoinTimeout: c.JoinTimeout, LastCall: c.LastCall, Silence: c.Silence, ListenStore: j.listenStore,
		Users:       j.users(),
		Credentials: j.creds,
		OnRefused:   func(why nodecoord.Refusal, addr string) { j.screen.logf(refusalTexts[why], addr) },
	}
}

// refusalTexts say which clients the host of a rendezvous has refused.
var refusalTexts = map[nodecoord.Refusal]string{
	nodecoord.Unidentified: "a client at %s has connected to the rendezvous and is not a cohort launcher: torchrun and cohort run cannot " +
		"launch parts of one job",
	nodecoord.OtherID: "a launcher at %s has asked for a job with another id and was refused: all nodes of a job need the same --rdzv-id",
	nodecoord.OtherToken: "a client at %s has another token or certificate than this job and was refused: all nodes of a job need " +
		"the same token file",
	nodecoord.WithoutTLS: "a launcher at %s does not use TLS and was refused: all nodes of a job need the same version of cohort and the " +
		"same token file",
	nodecoord.WithTLS: "a client at %s uses TLS and was refused: it has a token or certificates, and this launcher was started without",
	nodecoord.OtherClock: "a launcher at %s was refused because its clock differs by more than an hour: set the clocks of all nodes, for " +
		"instance with NTP",
}

// DefaultRunID is the id of a job on several nodes that was given none: torchrun's, the same on all nodes.
const DefaultRunID = "none"

// warnOpen prints that the job has no id which strangers do not know.
func (j *Job) warnOpen() {
	j.screen.logf(
		"without --token-file or --rdzv-id every computer that reaches %s can join this job, read it and end it; to prevent that, make a "+
			"token (cohort token new -o FILE) and give all nodes --token-file FILE, or give all nodes --rdzv-id %s",
		j.cfg.Endpoint, strings.ToLower(rand.Text()))
}

// announceEnd ends the job on all nodes if this launcher hosts it and was ended by the user.
func (j *Job) announceEnd(h *nodecoord.Host) {
	if how := j.endedBy(); h != nil && how != "" {
		h.End(cohort.New(op, cohort.Aborted, "the launcher that hosts the rendezvous "+how))
	}
}

// endedBy says how the user has ended this launcher, "" if it goes on.
func (j *Job) endedBy() string {
	switch {
	case j.end.Signal != 0:
		return "was ended by " + postmortem.Code(-j.end.Signal)
	case j.asked.Err() != nil:
		return "was ended"
	}
	return ""
}

// connect connects to a rendezvous. It tries until it is accepted, a signal comes, or limit is over. was says that a host has been
// there: one that refuses connections again and again then has ended. open makes of a connection what is returned; it is tried again
// after errSilent.
func (j *Job) connect(addr string, limit time.Duration, was bool, open func(net.Conn) (net.Conn, error)) (net.Conn, error) {
	over := time.NewTimer(limit)
	defer over.Stop()
	said, refused, dropped := false, 0, 0
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		ctx, cancel := context.WithTimeout(j.asked, 5*time.Second)
		c, err := ctxdial.Dial(ctx, &net.Dialer{}, "tcp", addr)
		cancel()
		if err == nil {
			if c, err = open(c); !errors.Is(err, errSilent) {
				return c, err
			}
			if dropped++; dropped > maxDropped {
				return nil, cohort.Newf(op, cohort.Unavailable, "%s: %w", addr, err)
			}
		}
		if ctxdial.Refused(err) {
			refused++
		}
		if was && refused == maxRefused {
			return nil, cohort.Newf(op, cohort.Unavailable, "no rendezvous at %s any more: %w", addr, err)
		}
		if !said && pause > 500*time.Millisecond {
			said = true
			j.screen.logf("waiting for the rendezvous at %s: %v", addr, err)
		}
		select {
		case <-time.After(pause):
		case s := <-j.signals:
			if _, ending := j.setSignal(s); ending {
				return nil, errEnded
			}
		case <-j.asked.Done():
			return nil, cohort.Ended(j.asked, op)
		case <-over.C:
			return nil, cohort.Newf(op, cohort.Unavailable, "no rendezvous at %s within %v: %w", addr, limit, err)
		}
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// joinTCP hosts or reaches the TCP store, counts itself in and, as the host, waits for the others.
func (s *settings) joinTCP(ctx context.Context, plan Plan) (member *Member, err error) {
	var lease *tcpstore.Lease
	if plan.Master {
		lease, err = s.host(plan)
		if plan.AgentStore && errors.Is(err, syscall.EADDRINUSE) {
			plan.Master, err = false, nil // "cohort store serve" has it: up to PyTorch 2.13 all ranks of a launcher are clients there
		}
	}
	if err != nil {
		return nil, err
	}
	if lease != nil {
		plan.Port = lease.Port() // MASTER_PORT=0 took a free one
		defer func() {
			if err != nil {
				_ = lease.Close()
			}
		}()
	}
	opts := append([]tcpstore.ClientOption{tcpstore.WithTimeout(s.timeout), tcpstore.WithLogger(s.logger)}, s.client...)
	client, err := tcpstore.Dial(ctx, plan.Addr(), opts...)
	if err != nil {
		return nil, dialError(plan, err)
	}
	defer func() {
		if err != nil {
			_ = client.Close()
		}
	}()
	if plan.WorldSize != NoWorldSize {
		if err = s.enroll(ctx, plan, client, lease); err != nil {
			return nil, err
		}
	}
	var st store.Store = client
	prefix, err := s.attemptPrefix(plan, client.Dialect())
	if err != nil {
		return nil, err
	}
	if prefix != "" {
		st = store.Prefix(prefix, client)
	}
	return NewMember(st, plan.Rank, plan.WorldSize, releaseTCP(client, lease)), nil
}

// releaseTCP ends a client and, for the rank that hosts, its share of the server.
func releaseTCP(client *tcpstore.Client, lease *tcpstore.Lease) Release {
	if lease == nil {
		return Release{Close: client.Close}
	}
	return Release{
		Shutdown: func(ctx context.Context) error {
			_ = client.Close()
			return lease.Shutdown(ctx)
		},
		Close: func() error {
			_ = client.Close()
			return lease.Close()
		},
	}
}

// host starts the server, or shares one.
func (s *settings) host(plan Plan) (*tcpstore.Lease, error) {
	shared := s.shared
	if shared == nil {
		shared = &tcpstore.Shared{}
	}
	opts := append([]tcpstore.ServerOption{tcpstore.WithLogger(s.logger)}, s.server...)
	bind, fallBack := s.bind, false
	if bind == "" {
		bind = bindHost(plan.Host)
		fallBack = bind != ""
	}
	lease, err := shared.Acquire(net.JoinHostPort(bind, strconv.Itoa(plan.Port)), opts...)
	if fallBack && errors.Is(err, syscall.EADDRNOTAVAIL) { // a service or a router has the address, and passes connections on to this host
		lease, err = shared.Acquire(net.JoinHostPort("", strconv.Itoa(plan.Port)), opts...)
	}
	if err != nil {
		return nil, bindError(plan, err)
	}
	s.hook.Emit(observe.Event{Kind: EventHost, Rank: plan.Rank, Peer: lease.Addr().String(), Detail: "rank 0 serves the store"})
	return lease, nil
}

// bindHost returns the address that a store listens on whose clients were told host: that address and no other. A name may lead to other
// addresses on other hosts, to which a store on all addresses, "", answers; but localhost is this host everywhere.
func bindHost(host string) string {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.String()
	}
	if strings.EqualFold(host, "localhost") {
		return "localhost" // of its addresses IPv4's, where it has one
	}
	return ""
}

// bindError names the port and who has it.
func bindError(plan Plan, err error) error {
	e := cohort.Wrap(opJoin, cohort.Unavailable, err)
	e.Rank = plan.Rank
	if !errors.Is(err, syscall.EADDRINUSE) {
		return e // the server's own words say it all
	}
	e.Detail = fmt.Sprintf("The server socket has failed to listen on any local network address: port %d: Address already in use",
		plan.Port)
	if owner, ok := portowner.Find(plan.Port); ok {
		e.Detail += ", held by " + owner.String()
	}
	e.Detail += "; end that process or choose another port on all ranks (MASTER_PORT or the port of the url); several " +
		"joins of one process can share a server (WithSharedServers)"
	return e
}

// dialError explains to the rank that hosts the store why it cannot reach itself.
func dialError(plan Plan, err error) error {
	if !plan.Master {
		return err
	}
	e := cohort.Wrap(opJoin, cohort.Unavailable, err)
	e.Rank = plan.Rank
	e.Detail = fmt.Sprintf("rank 0 serves the store on port %d of this machine but cannot reach it under the address that "+
		"all ranks use, so the others could not either; rank 0 must run on the machine that the address names: %v", plan.Port, err)
	return e
}

// attemptPrefix is the prefix that PyTorch 1.13 gives the keys of a store that outlives attempts.
func (s *settings) attemptPrefix(plan Plan, dialect tcpstore.Dialect) (string, error) {
	want := s.prefix == AttemptPrefixAlways || s.prefix == AttemptPrefixAuto && dialect == tcpstore.DialectLegacy
	if !plan.AgentStore || !want {
		return "", nil
	}
	if plan.Attempt == "" {
		return "", initFailure(plan.URL.Scheme, "environment variable "+EnvRestartCount+" expected, but not set",
			"it is the number of the attempt; with "+EnvUseAgentStore+"=True a store of PyTorch 1.13 needs it").asError(plan.URL.String())
	}
	return "/worker/attempt_" + plan.Attempt, nil
}

// enroll counts this process as one that joined, and as the host waits for the rest.
func (s *settings) enroll(ctx context.Context, plan Plan, client *tcpstore.Client, lease *tcpstore.Lease) error {
	counted := false
	name, me := claimName(plan.Attempt, plan.Rank), self()
	if client.Dialect() == tcpstore.DialectNative {
		var err error
		if err = s.warnOfLeftovers(ctx, plan, client); err != nil {
			return err
		}
		if err = s.warnOfSizes(ctx, plan, client, me); err != nil {
			return err
		}
		if counted, err = claimRank(ctx, client, name, plan.Rank, me); err != nil {
			return err
		}
	}
	if !counted {
		if _, err := client.JoinWorker(ctx); err != nil {
			return err
		}
		if client.Dialect() == tcpstore.DialectNative {
			after := me
			after.Counted = true
			if _, err := client.Claim(ctx, name, me.text(), after.text()); err != nil {
				return err
			}
		}
	}
	if !plan.Master {
		return nil
	}
	return awaitWorld(ctx, hostBoard{client, lease.Server, plan.Attempt}, plan.WorldSize, s.hook, s.logger)
}

// warnOfLeftovers says that a store holds the keys of an earlier run. A later attempt of a launcher expects them.
func (s *settings) warnOfLeftovers(ctx context.Context, plan Plan, client *tcpstore.Client) error {
	if plan.Attempt != "" && plan.Attempt != "0" {
		return nil
	}
	_, left, err := client.Hello(ctx)
	if err == nil && left > 1 { // more than the counter of workers that joined
		s.warn(ctx, fmt.Sprintf("the store at %s holds %d keys of an earlier run, which this run may take for its own and fail: "+
			"clear it between runs with \"cohort store clear --addr %s\", or start it with --forget", plan.Addr(), left, plan.Addr()))
	}
	return err
}

// warnOfSizes says that another process has joined a world of another size here. It is not an error: a process may be
// in two worlds, such as a group and a larger RPC world. The first to come claims the size, before its rank, so that
// the rank stays what its connection is called.
func (s *settings) warnOfSizes(ctx context.Context, plan Plan, c claimant, me identity) error {
	if plan.WorldSize < 1 {
		return nil
	}
	name := strings.TrimSuffix(claimName(plan.Attempt, 0), "rank/0") + "world"
	mine := fmt.Sprintf("%d: rank %d on %s", plan.WorldSize, plan.Rank, me.text())
	for expected := ""; ; {
		got, err := c.Claim(ctx, name, expected, mine)
		size, who, _ := strings.Cut(got, ": ")
		_, other, _ := strings.Cut(who, " on ")
		switch {
		case err != nil, size == strconv.Itoa(plan.WorldSize), parseIdentity(other).sameProcess(me):
			return err
		case got != expected: // not yet known whether its holder lives
			expected = got
			continue
		}
		who, _, _ = strings.Cut(who, tagMark)
		s.warn(ctx, fmt.Sprintf("this process is rank %d of a world of %d, but %s has joined a world of %s at %s; unless two worlds are "+
			"meant, give all ranks the same WORLD_SIZE (world_size)", plan.Rank, plan.WorldSize, who, size, plan.Addr()))
		return nil
	}
}

// claimant is the part of a client that claims.
type claimant interface {
	Claim(ctx context.Context, name, expected, text string) (string, error)
}

// claimRank takes the rank for this process. Another living process that has it is an error that names both. counted
// says that a predecessor of this rank, which has ended, is part of PyTorch's counter already, so that a rank that was started
// again does not count twice.
func claimRank(ctx context.Context, c claimant, name string, rank cohort.Rank, me identity) (counted bool, err error) {
	expected := ""
	for range 8 { // each round another process was faster; that many at once are many duplicates
		got, err := c.Claim(ctx, name, expected, me.text())
		if err != nil {
			return false, err
		}
		if got == me.text() {
			return parseIdentity(expected).Counted, nil
		}
		if got == expected { // its holder lives
			other := parseIdentity(got)
			if other.sameProcess(me) {
				return false, nil // a second join of one process, as for an RPC agent beside a group
			}
			return false, twiceError(rank, other, me)
		}
		expected = got
	}
	return false, twiceError(rank, parseIdentity(expected), me)
}

func twiceError(rank cohort.Rank, first, second identity) error {
	return &cohort.Error{
		Op: opJoin, Code: cohort.AlreadyExists, Rank: rank,
		Detail: fmt.Sprintf("rank %d joined twice: %s, %s; give each process its own rank, and end what is left of an earlier run",
			rank, first, second),
	}
}

// claimName is the name of a rank's claim. Each attempt of a launcher has ranks of its own.
func claimName(attempt string, rank cohort.Rank) string {
	name := "rank/" + strconv.Itoa(int(rank))
	if attempt != "" {
		name = "attempt/" + attempt + "/" + name
	}
	return name
}

// hostBoard is the board of the rank that hosts the store.
type hostBoard struct {
	client  *tcpstore.Client
	server  *tcpstore.Server
	attempt string
}

func (b hostBoard) Joined(ctx context.Context) (int64, error) { return b.client.Workers(ctx) }

// Watch has the server notify.
func (b hostBoard) Watch(ctx context.Context, changed func()) {
	_ = b.client.WatchWorkers(ctx, changed)
}

// Show waits for a key that is never set: its name is what "cohort store top" shows.
func (b hostBoard) Show(ctx context.Context, who string) {
	_ = b.client.Wait(ctx, who)
}

func (b hostBoard) Known(_ context.Context, size int) (map[cohort.Rank]identity, error) {
	prefix := strings.TrimSuffix(claimName(b.attempt, 0), "0")
	known := map[cohort.Rank]identity{}
	for name, claim := range b.server.Claims() {
		number, found := strings.CutPrefix(name, prefix)
		rank, err := strconv.Atoi(number)
		if !found || err != nil || rank < 0 || rank >= size {
			continue
		}
		if id := parseIdentity(claim.Text); claim.Held || id.Counted {
			id.Gone = !claim.Held
			known[cohort.Rank(rank)] = id
		}
	}
	return known, nil
}

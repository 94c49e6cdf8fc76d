// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package peeruid keeps other users of the host away from a port. Every user can connect to a port of the loopback interface, and the
// kernel does not tell a TCP server whose process that was. It does tell which user made the socket at the other end. PyTorch's clients
// prove nothing else, so this is the only thing that keeps another user from acting as a rank.
//
// A connection from another host is accepted: its user is not known, and the host may be one of the job.
package peeruid

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/sys/sockdiag"
)

// Env has the ids of other users that a job accepts, separated by commas.
const Env = "COHORT_ALLOW_UID"

// maxAllowed bounds the users that are accepted, maxSaid those that are reported.
const maxAllowed, maxSaid = 1024, 16

// Policy says whose connections are accepted: those of this process's user and of root, and of the users who are allowed in addition.
type Policy struct {
	allowed []uint32
	// say is called once for each user who is refused, and once if the system does not tell users.
	say func(string)

	find  func(local, remote netip.AddrPort) (sockdiag.Socket, error)
	local func(netip.Addr) bool

	mu struct {
		sync.Mutex

		said  []uint32
		blind bool
	}
}

// newPolicy returns a policy. It calls say with sentences for the log; a nil say is not called.
func newPolicy(allowed []uint32, say func(string)) *Policy {
	p := &Policy{
		allowed: slices.Concat([]uint32{0, id(os.Getuid()), id(os.Geteuid())}, allowed), say: say,
		find: sockdiag.Find, local: new(ownAddrs).has,
	}
	if say == nil {
		p.say = func(string) {}
	}
	return p
}

func id(n int) uint32 { return uint32(max(n, 0)) } //nolint:gosec // user ids have 32 bits; -1 is Windows

// Default returns the policy of a process whose environment may allow more users. If it does not name them right, none of them is allowed,
// and that is said.
func Default(allowed []uint32, say func(string)) *Policy {
	more, err := Parse(os.Getenv(Env))
	p := newPolicy(slices.Concat(allowed, more), say)
	if err != nil {
		p.say(fmt.Sprintf("%s: %v", Env, err))
	}
	return p
}

// ToLog returns what a policy needs to write its sentences into a log.
func ToLog(logger *slog.Logger, attrs ...any) func(string) {
	return func(sentence string) {
		logger.Warn("users of this host", append([]any{slog.String("reason", sentence)}, attrs...)...)
	}
}

// Parse reads ids of users, separated by commas.
func Parse(list string) (ids []uint32, err error) {
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		n, failed := strconv.ParseUint(text, 10, 32)
		if failed != nil {
			return nil, fmt.Errorf("%q is not the id of a user, a number as `id -u` prints it", text)
		}
		ids = append(ids, uint32(n))
	}
	if len(ids) > maxAllowed {
		return nil, fmt.Errorf("%d users are more than %d", len(ids), maxAllowed)
	}
	return ids, nil
}

// Format writes ids as [Parse] reads them.
func Format(ids []uint32) string {
	var texts []string
	for _, n := range ids {
		texts = append(texts, strconv.FormatUint(uint64(n), 10))
	}
	return strings.Join(texts, ",")
}

// Verdict is what is known of a client.
type Verdict int

// The verdicts.
const (
	// Accepted is a client whose user may connect, or who is on another host.
	Accepted Verdict = iota
	// Refused is one of another user.
	Refused
	// Gone is one whose end of the connection is closed already. Then its user is not known any more, so nothing that it has sent may be
	// believed.
	Gone
)

// Judge says whose a connection is that was just accepted. Its end here has the address local. It must be asked before anything that the
// client has sent is believed.
func (p *Policy) Judge(local, remote netip.AddrPort) Verdict {
	// Nothing reaches a loopback address from another host.
	if !local.Addr().Unmap().IsLoopback() && !p.local(remote.Addr().Unmap().WithZone("")) {
		return Accepted
	}
	s, err := p.find(remote, local)
	switch {
	case err == nil && s.Inode != 0:
		if p.Allows(s.UID) {
			return Accepted
		}
		p.refused(s.UID, remote)
		return Refused
	case errors.Is(err, sockdiag.ErrUnavailable):
		p.cannotTell()
		return Accepted
	default:
		return Gone
	}
}

// Accepts reports whether a connection may stay.
func (p *Policy) Accepts(local, remote netip.AddrPort) bool {
	return p.Judge(local, remote) == Accepted
}

// Allows reports whether a user is accepted.
func (p *Policy) Allows(uid uint32) bool { return slices.Contains(p.allowed, uid) }

func (p *Policy) refused(uid uint32, remote netip.AddrPort) {
	p.mu.Lock()
	known := slices.Contains(p.mu.said, uid) || len(p.mu.said) >= maxSaid
	if !known {
		p.mu.said = append(p.mu.said, uid)
	}
	p.mu.Unlock()
	if !known {
		who := "root"
		if own := os.Geteuid(); own != 0 {
			who = fmt.Sprintf("user %d and root", own)
		}
		p.say(fmt.Sprintf("refused a connection from %v: it belongs to user %s, and only %s may connect; to let that user in, "+
			"start with --allow-uid %d, or with %s=%d in the environment", remote, name(uid), who, uid, Env, uid))
	}
}

func name(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(number); err == nil {
		return number + " (" + strconv.QuoteToASCII(u.Username) + ")"
	}
	return number
}

func (p *Policy) cannotTell() {
	p.mu.Lock()
	said := p.mu.blind
	p.mu.blind = true
	p.mu.Unlock()
	if !said {
		p.say("this system does not report which user a connection belongs to: every user of this host can connect")
	}
}

// ownAge is how long the addresses of this host are believed to be the same. To read them costs more than everything else about a
// connection.
const ownAge = time.Second

// ownAddrs are the addresses of this host.
type ownAddrs struct {
	mu struct {
		sync.Mutex

		all  map[netip.Addr]bool
		read time.Time
	}
}

// has reports whether an address, without a zone, is one of this host's. If the system does not report, only loopback addresses are.
func (o *ownAddrs) has(a netip.Addr) bool { return a.IsLoopback() || o.onInterface(a) || routedHere(a) }

func (o *ownAddrs) onInterface(a netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); o.mu.all == nil || now.Sub(o.mu.read) > ownAge {
		o.mu.all, o.mu.read = map[netip.Addr]bool{}, now
		all, _ := net.InterfaceAddrs()
		for _, x := range all {
			if prefix, err := netip.ParsePrefix(x.String()); err == nil {
				o.mu.all[prefix.Addr().Unmap().WithZone("")] = true
			}
		}
	}
	return o.mu.all[a]
}

// Listener returns l with an Accept that leaves out connections of users that the policy does not accept.
func (p *Policy) Listener(l net.Listener) net.Listener { return &listener{l, p} }

type listener struct {
	net.Listener

	policy *Policy
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.policy.AcceptsConn(c) {
			return c, err
		}
		_ = c.Close()
	}
}

// AcceptsConn is Accepts for a connection.
func (p *Policy) AcceptsConn(c net.Conn) bool { return p.JudgeConn(c) == Accepted }

// JudgeConn is Judge for a connection. One that is not TCP is accepted.
func (p *Policy) JudgeConn(c net.Conn) Verdict {
	local, here := addrOf(c.LocalAddr())
	remote, there := addrOf(c.RemoteAddr())
	if !here || !there {
		return Accepted
	}
	return p.Judge(local, remote)
}

func addrOf(a net.Addr) (netip.AddrPort, bool) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	return tcp.AddrPort(), true
}

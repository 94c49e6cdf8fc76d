// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// watch is what the keeper waits on: an epoll instance around the mesh's own one, known to the runtime's poller.
//
// It listens only while no other goroutine polls the sockets. The runtime's poller would wake a thread for every packet that a
// driver reads anyway, and that costs more than the packet does.
type watch struct {
	fd        int
	file      *os.File
	listening bool // guarded by the mesh's mutex
}

func newWatch(ep int) (watch, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return watch{}, err
	}
	if err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, ep, &unix.EpollEvent{}); err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		_ = unix.Close(fd)
		return watch{}, err
	}
	return watch{fd: fd, file: os.NewFile(uintptr(fd), "epoll")}, nil
}

// listen says whether the runtime's poller is to learn of events.
func (w *watch) listen(ep int, on bool) {
	if on == w.listening {
		return
	}
	w.listening = on
	event := unix.EpollEvent{}
	if on {
		event.Events = unix.EPOLLIN
	}
	_ = unix.EpollCtl(w.fd, unix.EPOLL_CTL_MOD, ep, &event)
}

// relieve tells a keeper that waits for events that a goroutine drives from now on. Left to the events, it might never learn
// of it: the driver is often quicker, and then there is nothing to see for the keeper, who was woken all the same.
func (w *watch) relieve(ep int) {
	if w.listening {
		w.listen(ep, false)
		_ = w.file.SetReadDeadline(time.Unix(1, 0))
	}
}

func (w *watch) close() {
	if w.file != nil {
		_ = w.file.Close()
	}
}

const (
	// quiet is how long after the last driver the keeper takes over.
	quiet = time.Millisecond
	// pollInterval is how often the keeper looks at first whether others attend to the sockets, and idlePollInterval
	// how often after a long time in which they did.
	pollInterval     = 5 * quiet
	idlePollInterval = 8 * pollInterval
	// maxIdlePolls is how many looks in a row may find that a collective got nowhere: with more ranks than cores, a rank that is
	// not on a core stands still for longer than one.
	maxIdlePolls = 2
	// beatsPerLimit is how often a rank beats in the time after which its silence counts as its loss.
	beatsPerLimit = 4
)

// pulse reports whether the goroutine that runs a collective goes on: the keeper looks now and then whether it has posted something.
type pulse struct {
	posts uint64 // sends and receives posted
	seen  uint64 // of them, when the keeper looked last
	still int    // looks in a row in which nothing was posted
}

// beats reports whether something was posted lately.
func (p *pulse) beats() bool { return p.posts != p.seen || p.still < maxIdlePolls }

// attended reports whether another goroutine attends to the sockets, or did so just now. The goroutine that runs a collective
// computes between two waits and comes back: it counts as long as it goes on posting.
func (m *Mesh) attended() bool {
	return m.mu.driver.taken || len(m.mu.calls.live) > 0 && m.mu.pulse.beats() || time.Since(m.mu.driver.last) < quiet
}

// look is attended for the keeper, who remembers what it saw.
func (m *Mesh) look() bool {
	failpoint.At("tcp.keep.look")
	m.mu.Lock()
	defer m.mu.Unlock()
	busy := m.attended()
	if p := &m.mu.pulse; p.posts != p.seen {
		p.seen, p.still = p.posts, 0
	} else {
		p.still++
	}
	return busy
}

// keep is the keeper: it serves the sockets while no goroutine waits, sends heartbeats and detects when those of the peers are missing.
func (m *Mesh) keep() {
	defer m.keeper.Done()
	raw, err := m.watch.file.SyscallConn()
	if err != nil {
		return
	}
	beat := m.cfg.Heartbeat / beatsPerLimit
	if beat <= 0 {
		beat = time.Hour
	}
	nextBeat := time.Now().Add(beat)
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		// While others drive, only the clock is watched.
		for pause := pollInterval; ; pause = min(2*pause, idlePollInterval) {
			busy := m.look()
			if now := time.Now(); now.After(nextBeat) {
				m.beat()
				nextBeat = now.Add(beat)
			}
			if !busy {
				break
			}
			timer.Reset(min(pause, beat))
			failpoint.At("tcp.keep.wait")
			select {
			case <-m.stop:
				return
			case <-timer.C:
			}
		}
		_ = m.watch.file.SetReadDeadline(nextBeat)
		failpoint.At("tcp.keep.sleep")
		err := raw.Read(func(uintptr) bool { return m.serve() })
		select {
		case <-m.stop:
			return
		default:
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// serve handles what has arrived if no other goroutine does. It returns false when nothing had, and the poller will notify.
func (m *Mesh) serve() bool {
	failpoint.At("tcp.keep.serve")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed || m.attended() {
		m.watch.listen(m.ep, false)
		return true
	}
	n, errno := epollLook(m.ep, m.events[:])
	if errno != 0 {
		return true
	}
	m.handle(n)
	if n > 0 {
		return true
	}
	m.watch.listen(m.ep, true)
	return false
}

// activity are the signs of life on a connection.
type activity struct {
	silent   time.Duration // for how long the peer has said nothing, as far as this rank was awake to see
	received bool          // something arrived since the keeper looked
	spoke    bool          // something was written since then
}

// pass notes that the keeper looks, some time after its last look.
func (s *activity) pass(passed time.Duration) {
	s.spoke = false
	if s.silent += passed; s.received {
		s.silent, s.received = 0, false
	}
}

// beat notifies silent peers that this rank lives, and gives up those that say nothing.
func (m *Mesh) beat() {
	failpoint.At("tcp.keep.beat")
	m.mu.Lock()
	defer m.mu.Unlock()
	// If this process stood still too, the time that it slept proves nothing about the others: no beat counts more than two.
	now := time.Now()
	passed := min(now.Sub(m.mu.lastBeat), m.cfg.Heartbeat/2)
	m.mu.lastBeat = now
	for _, c := range m.mu.conns {
		if c == nil || c.gone != nil {
			continue
		}
		if !c.activity.spoke && len(c.out.control) == 0 {
			c.queueFrame(beatFrame)
			c.flush()
			if c.gone != nil {
				continue
			}
		}
		c.activity.pass(passed)
		if m.cfg.Heartbeat > 0 && c.activity.silent > m.cfg.Heartbeat && !c.read() && c.gone == nil {
			c.lose("rank " + itoa(c.peer) + " has sent nothing for " + c.activity.silent.Round(time.Millisecond).String() +
				": its process is stopped or the network to it is cut")
		}
	}
}

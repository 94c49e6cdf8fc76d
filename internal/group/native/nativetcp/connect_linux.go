// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

var beatFrame = nativewire.Header{Type: nativewire.Beat}

// helloLimit is how long a connection may take to say who it is.
const helloLimit = 5 * time.Second

// Connect makes the connections of one rank: it dials the lower ranks and is dialled by the higher ones. It closes the
// listener.
func Connect(ctx context.Context, cfg Config) (*Mesh, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	giveUp := func(err error) { // before the listener and the connections end, which others can see
		if ctx.Err() == nil && cfg.OnGiveUp != nil {
			cfg.OnGiveUp(err)
		}
		cancel(err)
	}
	made := newJoined(cfg.Size)
	beating, hush := context.WithCancel(ctx)
	defer hush()
	var beats sync.WaitGroup
	beats.Go(func() { made.beat(beating, cfg.Heartbeat/beatsPerLimit) })
	var tasks sync.WaitGroup
	accepted := make(chan struct{})
	if cfg.Rank < cfg.Size-1 {
		tasks.Go(func() {
			defer close(accepted)
			if err := acceptHigher(ctx, &cfg, made.put); err != nil {
				giveUp(err)
			}
		})
	} else {
		close(accepted)
	}
	for rank := range cfg.Rank {
		tasks.Go(func() {
			if err := dialLower(ctx, &cfg, rank, made.put); err != nil {
				giveUp(err)
			}
		})
	}
	stop := context.AfterFunc(ctx, func() { _ = cfg.Listener.Close() })
	failpoint.At("tcp.connect.wait")
	select {
	case <-accepted:
	case <-ctx.Done():
	}
	stop()
	_ = cfg.Listener.Close()
	failpoint.At("tcp.connect.tasks")
	tasks.Wait()
	hush() // the mesh beats from here on
	failpoint.At("tcp.connect.beats")
	beats.Wait()
	conns, hellos := made.all()
	if missing := firstMissing(conns, cfg.Rank); missing != cohort.NoRank || ctx.Err() != nil {
		defer closeAll(conns)
		err := connectError(caller, ctx, missing)
		giveUp(err)
		return nil, err
	}
	failpoint.At("tcp.connect.made")
	return newMesh(cfg, conns, hellos)
}

// firstMissing returns the first other rank without a connection, or NoRank.
func firstMissing(conns []net.Conn, self int) cohort.Rank {
	for rank, c := range conns {
		if c == nil && rank != self {
			return cohort.Rank(rank)
		}
	}
	return cohort.NoRank
}

// connectError returns what ended the connecting: the end of the caller's context comes before what followed from it.
func connectError(caller, ctx context.Context, missing cohort.Rank) error {
	err := cohort.New("native: connect", cohort.Unavailable, "the listener ended")
	switch why, ok := errors.AsType[*cohort.Error](context.Cause(ctx)); {
	case caller.Err() != nil:
		err = cohort.Ended(caller, "native: connect")
	case ok:
		err = why
	}
	if err.Rank == cohort.NoRank {
		err.Rank = missing
	}
	return err
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

// dialLower connects to a lower rank and exchanges hellos.
func dialLower(ctx context.Context, cfg *Config, rank int, put func(int, net.Conn, *nativewire.Hello) bool) error {
	fail := func(err error) error {
		e := cohort.Wrap("native: connect", cohort.Unavailable, err)
		e.Rank, e.Peer = cohort.Rank(rank), cfg.Peers[rank]
		return e
	}
	failpoint.At("tcp.connect.dial")
	c, err := ctxdial.Dial(ctx, &net.Dialer{}, "tcp", cfg.Peers[rank])
	if errors.Is(err, syscall.ECONNREFUSED) {
		// It listened when it took its place, and does so until the group is formed.
		return &cohort.Error{
			Op: "native: connect", Code: cohort.PeerLost, Rank: cohort.Rank(rank), Peer: cfg.Peers[rank],
			Detail: "connection refused: its process has exited", Err: err,
		}
	}
	if err != nil {
		return fail(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	h := cfg.hello(uint32(rank)) //nolint:gosec // checked
	var buf [nativewire.HelloSize]byte
	h.Put(buf[:])
	failpoint.At("tcp.connect.hello")
	if _, err = c.Write(buf[:]); err != nil {
		_ = c.Close()
		return fail(err)
	}
	answer, err := readHello(c)
	switch {
	case err != nil && errors.Is(err, io.EOF):
		err = cohort.New("native: hello", cohort.Unavailable,
			"the rank closed the connection: it has ended or given up, or the address is stale or belongs to another group")
	//nolint:gosec // checked
	case err == nil && (answer.Group != cfg.Group || answer.From != uint32(rank) || answer.Size != uint32(cfg.Size)):
		err = cohort.New("native: hello", cohort.Protocol, "another group answers at this address: its store keys are stale")
	}
	if err != nil {
		_ = c.Close()
		return fail(err)
	}
	put(rank, c, &answer)
	return nil
}

// acceptHigher takes the connections of all higher ranks. What does not say the right hello is closed and logged.
func acceptHigher(ctx context.Context, cfg *Config, put func(int, net.Conn, *nativewire.Hello) bool) error {
	var greetings sync.WaitGroup
	defer func() {
		failpoint.At("tcp.connect.greeted")
		greetings.Wait()
	}()
	// A connection that says nothing must not hold up the others: it ends when all ranks are here.
	greeting, enough := context.WithCancel(ctx)
	defer enough()
	arrived := make(chan struct{}, cfg.Size)
	stop := make(chan struct{})
	defer close(stop)
	greetings.Go(func() {
		for range cfg.Size - 1 - cfg.Rank {
			failpoint.At("tcp.connect.arrived")
			select {
			case <-arrived:
			case <-stop:
				return
			}
		}
		_ = cfg.Listener.Close() // ends Accept below
	})
	limit := make(chan struct{}, 256) // hellos at the same time
	for {
		failpoint.At("tcp.connect.accept")
		c, err := cfg.Listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return systemError(cfg, err)
		}
		failpoint.At("tcp.connect.limit")
		select {
		case limit <- struct{}{}:
		case <-ctx.Done():
			_ = c.Close()
			return nil
		}
		greetings.Go(func() {
			defer func() { <-limit }()
			hush := context.AfterFunc(greeting, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
			defer hush()
			if greet(cfg, c, put) {
				failpoint.At("tcp.connect.arrives")
				arrived <- struct{}{}
			}
		})
	}
}

// greet reads a hello and answers it.
func greet(cfg *Config, c net.Conn, put func(int, net.Conn, *nativewire.Hello) bool) bool {
	refuse := func(reason string) bool {
		cfg.Logger.Warn("refused a connection", slog.String("peer", c.RemoteAddr().String()), slog.String("reason", reason))
		_ = c.Close()
		return false
	}
	h, err := readHello(c)
	switch {
	case errors.Is(err, io.EOF): // another rank only looked whether this one is there
		_ = c.Close()
		return false
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse("it did not say what it is")
	case err != nil:
		return refuse(err.Error())
	case h.Group != cfg.Group || h.Size != uint32(cfg.Size): //nolint:gosec // checked
		return refuse("it belongs to another group")
	case h.To != uint32(cfg.Rank) || h.From <= uint32(cfg.Rank): //nolint:gosec // checked
		return refuse("it is meant for another rank")
	}
	answer := cfg.hello(h.From)
	var buf [nativewire.HelloSize]byte
	answer.Put(buf[:])
	failpoint.At("tcp.connect.answer")
	_ = c.SetWriteDeadline(time.Now().Add(helloLimit))
	if _, err := c.Write(buf[:]); err != nil {
		return refuse(err.Error())
	}
	if !put(int(h.From), c, &h) {
		return refuse("the rank is connected already")
	}
	return true
}

// hello is what this rank says to another one.
func (c *Config) hello(to uint32) nativewire.Hello {
	return nativewire.Hello{
		//nolint:gosec // checked
		Version: nativewire.Version, Group: c.Group, From: uint32(c.Rank), To: to, Size: uint32(c.Size), Window: uint32(c.Window),
		Lanes: uint32(c.Lanes), //nolint:gosec // checked
	}
}

func readHello(c net.Conn) (nativewire.Hello, error) {
	failpoint.At("tcp.connect.read")
	_ = c.SetReadDeadline(time.Now().Add(helloLimit))
	var buf [nativewire.HelloSize]byte
	if _, err := io.ReadFull(c, buf[:]); err != nil {
		return nativewire.Hello{}, err
	}
	return nativewire.ParseHello(buf[:])
}

// systemError is what the operating system refused to this rank: too many open files, for example. It names this rank, so that the
// others learn why it is not there.
func systemError(cfg *Config, err error) error {
	e := cohort.Wrap("native: connect", cohort.Unavailable, err)
	e.Rank = cohort.Rank(cfg.Rank)
	return e
}

// newMesh takes the sockets over. Before it fails it says so: the other ranks are connected, and would take the end of their
// connections for a death.
func newMesh(cfg Config, conns []net.Conn, hellos []nativewire.Hello) (*Mesh, error) {
	m := &Mesh{
		rank: cfg.Rank, size: cfg.Size, cfg: cfg, ep: -1, event: -1, stop: make(chan struct{}),
		released: make(chan struct{}), lanes: cfg.Lanes,
	}
	m.mu.conns, m.mu.cores = make([]*conn, cfg.Size), make([]uint16, cfg.Size)
	if cfg.Shared { // the Go scheduler decides which of its ranks runs where, and may want this thread for another
		m.cfg.Local = nil
		m.wait.SetSharing(1)
	}
	fail := func(err error) (*Mesh, error) {
		err = systemError(&cfg, err)
		if cfg.OnGiveUp != nil {
			cfg.OnGiveUp(err)
		}
		closeAll(conns)
		for _, c := range m.mu.conns {
			if c != nil {
				_ = unix.Close(c.fd)
			}
		}
		m.closeFiles()
		return nil, err
	}
	var err error
	if m.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fail(err)
	}
	if m.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fail(err)
	}
	if err = unix.EpollCtl(m.ep, unix.EPOLL_CTL_ADD, m.event, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1}); err != nil {
		return fail(err)
	}
	for rank, nc := range conns {
		if nc == nil {
			continue
		}
		var fd int
		if fd, err = takeSocket(nc); err != nil {
			return fail(err)
		}
		conns[rank] = nil
		m.lanes = min(m.lanes, int(hellos[rank].Lanes))
		credit := int(hellos[rank].Window)
		m.mu.conns[rank] = &conn{
			m: m, peer: rank, fd: fd, addr: nc.RemoteAddr().String(),
			in: reader{buf: make([]byte, bufferSize)}, window: window{theirs: credit, credit: credit}, activity: activity{received: true},
		}
		if err = unix.EpollCtl(m.ep, unix.EPOLL_CTL_ADD, fd,
			&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(rank)}); err != nil {
			return fail(err)
		}
	}
	if m.watch, err = newWatch(m.ep); err != nil {
		return fail(err)
	}
	m.keeper.Add(1)
	go m.keep()
	return m, nil
}

// takeSocket takes the socket out of the runtime's poller: the mesh polls it itself. If it fails, nc stays open.
func takeSocket(nc net.Conn) (int, error) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return -1, errors.New("not a TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(s uintptr) { fd, dupErr = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	if dupErr != nil {
		return -1, dupErr
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	defer func() { _ = nc.Close() }()
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if sameHost(nc) {
		// Within a host there is not any path to measure. A congestion control that paces what it sends, like BBR, only
		// costs timers there; the simplest one is always allowed.
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	}
	return fd, nil
}

// sameHost reports whether both ends of a connection have the same address.
func sameHost(nc net.Conn) bool {
	local, ok1 := nc.LocalAddr().(*net.TCPAddr)
	remote, ok2 := nc.RemoteAddr().(*net.TCPAddr)
	return ok1 && ok2 && local.IP.Equal(remote.IP)
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package storefail

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// world is a server that can be cut off, killed and stopped.
type world interface {
	// dial connects the victim, in the way that cut can end.
	dial(ctx context.Context, network, addr string) (net.Conn, error)
	// direct connects others.
	direct(ctx context.Context, network, addr string) (net.Conn, error)
	addr() string
	cut()     // resets the victim's connections
	kill()    // ends the server
	stop()    // the server does nothing any more, until resume
	resume()  // the opposite of stop
	restart() // ends the server and starts an empty one at its place
	close()
}

// memoryWorld is a server in this process, in a bubble.
type memoryWorld struct {
	r       *failpointtest.Run
	network faultnet.Network
	gate    *gate

	mu     sync.Mutex
	server *tcpstore.Server
	conns  []*faultnet.Conn
	own    []*ownConn
	open   int // connections of the victim
}

const memoryAddr = "store:1"

func newMemoryWorld(r *failpointtest.Run) world {
	w := &memoryWorld{r: r, gate: newGate()}
	if err := w.start(); err != nil {
		r.Errorf("%v", err)
	}
	return w
}

func (w *memoryWorld) start() error {
	l, err := w.network.Listen(memoryAddr)
	if err != nil {
		return err
	}
	server, err := tcpstore.Serve(&gatedListener{Listener: l, gate: w.gate})
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.server = server
	return nil
}

func (w *memoryWorld) addr() string { return memoryAddr }

func (w *memoryWorld) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := w.network.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open++
	if c, ok := conn.(*faultnet.Conn); ok {
		w.conns = append(w.conns, c)
	}
	own := &ownConn{Conn: conn, w: w}
	w.own = append(w.own, own)
	return own, nil
}

// victims returns the connections of the victim.
func (w *memoryWorld) victims() []*ownConn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.own)
}

func (w *memoryWorld) direct(ctx context.Context, network, addr string) (net.Conn, error) {
	return w.network.Dial(ctx, network, addr)
}

// cut resets the connections from the server's side, as a network does.
func (w *memoryWorld) cut() {
	w.mu.Lock()
	conns := w.conns
	w.conns = nil
	w.mu.Unlock()
	for _, c := range conns {
		c.Cut()
	}
}

func (w *memoryWorld) kill() {
	w.mu.Lock()
	server := w.server
	w.mu.Unlock()
	_ = server.Close()
}

func (w *memoryWorld) restart() {
	w.kill()
	_ = w.start()
}

func (w *memoryWorld) stop()   { w.gate.shut() }
func (w *memoryWorld) resume() { w.gate.open() }

// close is called when the victim's client is closed.
func (w *memoryWorld) close() {
	w.resume()
	w.kill()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open != 0 {
		w.r.Errorf("the client is closed, and %d of its connections are not", w.open)
	}
}

// ownConn is a connection of the victim's.
type ownConn struct {
	net.Conn
	w      *memoryWorld
	once   sync.Once
	closed atomic.Bool
}

func (c *ownConn) Close() error {
	c.closed.Store(true)
	c.once.Do(func() {
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		c.w.open--
	})
	return c.Conn.Close()
}

// gate holds a server's reads up. It blocks on channels only, as everything in a bubble has to.
type gate struct {
	lock   chan struct{}
	opened chan struct{} // closed while it is open
}

func newGate() *gate {
	g := &gate{lock: make(chan struct{}, 1), opened: make(chan struct{})}
	close(g.opened)
	return g
}

func (g *gate) shut() {
	g.lock <- struct{}{}
	defer func() { <-g.lock }()
	select {
	case <-g.opened:
		g.opened = make(chan struct{})
	default:
	}
}

func (g *gate) open() {
	g.lock <- struct{}{}
	defer func() { <-g.lock }()
	select {
	case <-g.opened:
	default:
		close(g.opened)
	}
}

func (g *gate) way() <-chan struct{} {
	g.lock <- struct{}{}
	defer func() { <-g.lock }()
	return g.opened
}

type gatedListener struct {
	net.Listener
	gate *gate
}

func (l *gatedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &gatedConn{Conn: conn, gate: l.gate, closed: make(chan struct{})}, nil
}

type gatedConn struct {
	net.Conn
	gate   *gate
	once   sync.Once
	closed chan struct{}
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select { // what was read is not looked at while the process stands still
	case <-c.gate.way():
	case <-c.closed:
	}
	return n, err
}

func (c *gatedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// processWorld is a server in another process, and a proxy that the victim's connections pass.
type processWorld struct {
	r     *failpointtest.Run
	proxy *faultnet.Proxy
	front string

	mu    sync.Mutex
	cmd   *exec.Cmd
	stdin io.Closer
	dead  atomic.Bool
}

const serverEnv = "COHORT_MOMENT_SERVER"

// TestMain serves a store in the process that processWorld starts.
func TestMain(m *testing.M) {
	if addr := os.Getenv(serverEnv); addr != "" {
		s, err := tcpstore.Listen(addr, tcpstore.WithLoops(1+os.Getpid()%3))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(s.Addr())
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func newProcessWorld(r *failpointtest.Run) world {
	w := &processWorld{r: r}
	w.start("127.0.0.1:0")
	proxy, err := faultnet.ListenTCP(w.front)
	if err != nil {
		r.Errorf("%v", err)
	}
	w.proxy = proxy
	return w
}

func (w *processWorld) start(addr string) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverEnv+"="+addr)
	cmd.Stderr = os.Stderr
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		w.r.Errorf("%v", err)
		return
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		w.r.Errorf("the server did not start: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cmd, w.stdin, w.front = cmd, stdin, strings.TrimSpace(line)
	w.dead.Store(false)
}

func (w *processWorld) addr() string { return w.proxy.Addr() }

func (w *processWorld) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, addr)
}

func (w *processWorld) direct(ctx context.Context, network, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, w.front)
}

func (w *processWorld) signal(s syscall.Signal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.dead.Load() {
		_ = w.cmd.Process.Signal(s)
	}
}

func (w *processWorld) cut() { w.proxy.Cut() }

func (w *processWorld) kill() {
	w.signal(syscall.SIGKILL)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.dead.Swap(true) {
		_ = w.stdin.Close()
		_ = w.cmd.Wait()
	}
}

func (w *processWorld) restart() {
	w.kill()
	w.start(w.front)
}

func (w *processWorld) stop()   { w.signal(syscall.SIGSTOP) }
func (w *processWorld) resume() { w.signal(syscall.SIGCONT) }

func (w *processWorld) close() {
	w.kill()
	_ = w.proxy.Close()
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package faultnet

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPipeBuffersAndEnds(t *testing.T) {
	client, server := pipe("client", "server", nil)
	if n, err := client.Write([]byte("hello")); n != 5 || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
	_ = client.Close()
	got, err := io.ReadAll(server)
	if string(got) != "hello" || err != nil {
		t.Fatalf("read: %q, %v", got, err)
	}
	if _, err := server.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Fatalf("write to a closed end: %v", err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("read after own close: %v", err)
	}
}

func TestPipeReset(t *testing.T) {
	client, server := pipe("client", "server", nil)
	_, _ = client.Write([]byte("lost"))
	client.Reset()
	if n, err := server.Read(make([]byte, 8)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("read after reset: %d, %v", n, err)
	}
}

func TestPipeDeadlinesInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pipe("client", "server", nil)
		start := time.Now()
		_ = client.SetReadDeadline(start.Add(time.Hour))
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read: %v", err)
		}
		if d := time.Since(start); d != time.Hour {
			t.Fatalf("the deadline came after %v", d)
		}
		_ = client.SetReadDeadline(time.Time{})
		_, _ = server.Write([]byte("a"))
		if n, err := client.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Fatalf("read after the deadline was cleared: %d, %v", n, err)
		}
		_ = client.SetWriteDeadline(time.Now().Add(time.Minute))
		n, err := client.Write(make([]byte, bufferSize+1))
		if n != bufferSize || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("write into a full buffer: %d, %v", n, err)
		}
		go func() {
			time.Sleep(time.Second)
			_ = client.SetReadDeadline(time.Unix(1, 0))
		}()
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("interrupted read: %v", err)
		}
	})
}

func TestNetworkRefusesAndAccepts(t *testing.T) {
	var network Network
	if _, err := network.Dial(t.Context(), "", "unused"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("dial: %v", err)
	}
	l, err := network.Listen("here")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = network.Listen("here"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("second listen: %v", err)
	}
	client, err := network.Dial(t.Context(), "", "here")
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	network.CutAll()
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Fatal("the connection survived CutAll")
	}
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("server side: %v", err)
	}
	_ = l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("accept: %v", err)
	}
}

// echo answers every connection of l with what it sends.
func echo(l net.Listener) (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return func() { _ = l.Close(); <-done }
}

func TestProxyFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network Network
		target, _ := network.Listen("server")
		defer echo(target)()
		front, _ := network.Listen("proxy")
		p := NewProxy(front, "server", network.Dial)
		defer p.Close()
		dial := func() net.Conn {
			c, err := network.Dial(t.Context(), "", "proxy")
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		ask := func(c net.Conn, text string) (string, time.Duration, error) {
			start := time.Now()
			_ = c.SetDeadline(start.Add(time.Minute))
			if _, err := io.WriteString(c, text); err != nil {
				return "", 0, err
			}
			got := make([]byte, len(text))
			_, err := io.ReadFull(c, got)
			return string(got), time.Since(start), err
		}
		c := dial()
		if got, took, err := ask(c, "hi"); got != "hi" || took != 0 || err != nil {
			t.Fatalf("plain: %q, %v, %v", got, took, err)
		}
		p.SetDown(Fault{Delay: time.Second})
		if got, took, err := ask(c, "hi"); got != "hi" || took != time.Second || err != nil {
			t.Fatalf("delay: %q, %v, %v", got, took, err)
		}
		p.SetDown(Fault{BytesPerSecond: 10})
		if _, took, err := ask(c, "twenty bytes, exactly"); took != 2100*time.Millisecond || err != nil {
			t.Fatalf("throttle: %v, %v", took, err)
		}
		p.SetDown(Fault{Garble: true})
		if got, _, err := ask(c, "hi"); got != "\x97\x96" || err != nil {
			t.Fatalf("garble: %q, %v", got, err)
		}
		p.SetDown(Fault{Swallow: true})
		if _, took, err := ask(c, "hi"); !errors.Is(err, os.ErrDeadlineExceeded) || took != time.Minute {
			t.Fatalf("half open: %v, %v", took, err)
		}
		p.SetDown(Fault{})
		if n := p.Cut(); n != 1 {
			t.Fatalf("cut %d connections", n)
		}
		if n := p.Conns(); n != 0 {
			t.Fatalf("%d connections are left after the cut", n)
		}
		if _, _, err := ask(c, "hi"); err == nil {
			t.Fatal("the connection survived the cut")
		}
		p.SetUp(Fault{CutAfter: 3})
		if _, _, err := ask(dial(), "four"); err == nil {
			t.Fatal("no connection was cut after three bytes")
		}
		if got, _, err := ask(dial(), "four"); got != "four" || err != nil {
			t.Fatalf("the connection after the one that was cut: %q, %v", got, err)
		}
		p.Cut()
		p.Refuse(true)
		if _, _, err := ask(dial(), "hi"); err == nil {
			t.Fatal("a refused connection worked")
		}
		p.Refuse(false)
		c = dial()
		if got, _, err := ask(c, "hi"); got != "hi" || err != nil {
			t.Fatalf("after the fault: %q, %v", got, err)
		}
		if n := p.CutClients(); n != 1 {
			t.Fatalf("cut %d connections of 1", n)
		}
		if _, _, err := ask(c, "hi"); err == nil {
			t.Fatal("the connection survived the cut of the clients")
		}
		time.Sleep(time.Minute)
		if n := p.Conns(); n != 1 {
			t.Fatalf("the server noticed the cut: %d connections of 1 are left", n)
		}
	})
}

func TestProxyOverTCP(t *testing.T) {
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo(l)()
	p, err := ListenTCP(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write([]byte("x"))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	p.Inject([]byte("junk"))
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("after the cut: %v", err)
	}
}

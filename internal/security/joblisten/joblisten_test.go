// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblisten

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/internal/security/jobcert"
	"github.com/cohort-dist/cohort/internal/security/jobtls"
	"github.com/cohort-dist/cohort/internal/security/jobtoken"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// launcher are the credentials of one whose clock differs by so much.
func launcher(t *testing.T, token jobtoken.Token, off time.Duration) *jobtls.Credentials {
	t.Helper()
	c, err := jobtls.FromToken(token, func() time.Time { return time.Now().Add(off) })
	if err == nil {
		err = c.AdmitSelf(1)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newToken(t *testing.T) jobtoken.Token {
	t.Helper()
	token, err := jobtoken.New(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// port is one whose connections are echoed, and what it has said.
type port struct {
	addr string
	mu   sync.Mutex
	said []error
}

func listen(t *testing.T, token jobtoken.Token) *port {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &port{addr: raw.Addr().String()}
	l := Listen(raw, launcher(t, token, 0).Server(jobtls.Store), func(_ string, why error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.said = append(p.said, why)
	})
	var echoes sync.WaitGroup
	echoes.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			echoes.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		_ = l.Close()
		echoes.Wait()
	})
	return p
}

func (p *port) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// echo returns what the port answers to a word over TLS.
func (p *port) echo(t *testing.T, config *tls.Config) (string, error) {
	t.Helper()
	c := tls.Client(p.dial(t), config)
	if _, err := io.WriteString(c, "word"); err != nil {
		return "", err
	}
	got := make([]byte, 4)
	n, err := io.ReadFull(c, got)
	return string(got[:n]), err
}

// TestListener: a launcher of the job is served. All others get nothing, and it is said once for each kind why.
func TestListener(t *testing.T) {
	t.Parallel()
	token := newToken(t)
	p := listen(t, token)
	own := launcher(t, token, 0)
	for range 2 {
		if got, err := p.echo(t, own.Client(jobtls.Store, "h")); got != "word" || err != nil {
			t.Errorf("a launcher of the job: %q, %v", got, err)
		}
	}
	believing := func(c *jobtls.Credentials) *tls.Config { // it accepts every server
		config := c.Client(jobtls.Store, "h")
		config.VerifyConnection = nil
		return config
	}
	nameless := own.Client(jobtls.Store, "h")
	nameless.GetClientCertificate = nil
	if _, err := p.echo(t, launcher(t, newToken(t), 0).Client(jobtls.Store, "h")); !errors.Is(err, jobcert.ErrForeign) {
		t.Errorf("a launcher with another token finds out: %v", err)
	}
	for name, config := range map[string]*tls.Config{
		"another job":          believing(launcher(t, newToken(t), 0)),
		"expired":              believing(launcher(t, token, -40*24*time.Hour)),
		"not valid yet":        believing(launcher(t, token, 40*24*time.Hour)),
		"no certificate":       nameless,
		"the launchers' wire":  own.Client(jobtls.Launch, "h"),
		"a client of the web":  {InsecureSkipVerify: true, ServerName: "h"},
		"TLS of years ago":     {InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12},
		"another job, by half": {InsecureSkipVerify: true, NextProtos: []string{jobtls.Store}},
	} {
		if got, err := p.echo(t, config); err == nil {
			t.Errorf("%s: it is answered %q", name, got)
		}
	}
	testkit.Until(t, "both kinds are reported", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.said) == 2
	})
}

// TestReasons: why a client was refused can be told from its error, and the words say what is wrong with its certificate.
func TestReasons(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		off  time.Duration
		want error
	}{
		"expired": {-40 * 24 * time.Hour, jobcert.ErrExpired}, "not valid yet": {40 * 24 * time.Hour, jobcert.ErrClock},
	} {
		token := newToken(t)
		p := listen(t, token)
		config := launcher(t, token, c.off).Client(jobtls.Store, "h")
		config.VerifyConnection = nil
		if _, err := p.echo(t, config); err == nil {
			t.Errorf("%s: it is answered", name)
		}
		testkit.Until(t, "it is reported", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.said) == 1
		})
		if err := p.said[0]; !errors.Is(err, ErrForeign) || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.want.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPlainClient: a client that does not begin with TLS, as those of PyTorch, gets nothing and is reported once.
func TestPlainClient(t *testing.T) {
	t.Parallel()
	p := listen(t, newToken(t))
	for _, first := range []string{"\x0a\x3c\x02\x5e\x3d", "\x00\x05\x00\x00\x00", "GET / HTTP/1.1\r\n\r\n"} {
		c := p.dial(t)
		_, _ = io.WriteString(c, first)
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%q is answered", first)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.said) != 1 || !errors.Is(p.said[0], ErrPlain) {
		t.Errorf("it says %v", p.said)
	}
}

// TestEndless: a client that sends without end in place of a handshake is disconnected after so many bytes.
func TestEndless(t *testing.T) {
	t.Parallel()
	p := listen(t, newToken(t))
	c := p.dial(t)
	record := append([]byte{jobtls.Handshake, 3, 1, 0x40, 0}, make([]byte, 1<<14)...) // a ClientHello of 2^24 bytes
	record[5], record[6], record[7], record[8] = 1, 0xff, 0xff, 0xff
	sent := 0
	for err := error(nil); err == nil; sent++ {
		if _, err = c.Write(record); sent > 4000 {
			t.Fatal("64 MiB are read")
		}
	}
}

// TestEndsWithStrangers: a listener that is closed ends the connections of those who have not shown who they are.
func TestEndsWithStrangers(t *testing.T) {
	t.Parallel()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(raw, launcher(t, newToken(t), 0).Server(jobtls.Store), nil)
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = l.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err = c.Read(make([]byte, 1)); err == nil || silent(err) {
		t.Errorf("the connection is open: %v", err)
	}
	if _, err = l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept returns %v", err)
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package memberlink

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// format is the number of this protocol. A member speaks to those that have the same one or a later one, which answers in this one.
const format = 1

// maxGreeting bounds a greeting.
const maxGreeting = 64 << 10

// What a connection is for.
const (
	kindMessages = "messages"
	kindSnapshot = "snapshot"
	kindRequest  = "request"
)

// hello is what the side says that has made a connection.
type hello struct {
	Format  int    `json:"format"`
	Level   int    `json:"level,omitempty"`
	Kind    string `json:"kind"`
	Cluster []byte `json:"cluster,omitempty"`
	From    uint64 `json:"from,string,omitempty"`
	To      uint64 `json:"to,string,omitempty"`
}

// reply is what the other side answers.
type reply struct {
	Format  int    `json:"format"`
	Level   int    `json:"level,omitempty"`
	Refused string `json:"refused,omitempty"` // why the connection ends here
	Removed bool   `json:"removed,omitempty"` // because the one that made it was removed from the cluster
}

// errRefused and errRemoved are in the chain of the error of a connection that the other member has refused.
var (
	errRefused = errors.New("the member refuses the connection")
	errRemoved = errors.New("this member was removed from the cluster")
)

// Dial connects and greets.
func Dial(ctx context.Context, addr string, config *tls.Config, h hello) (net.Conn, error) {
	c, err := ctxdial.Dial(ctx, &net.Dialer{Timeout: dialTimeout}, "tcp", addr)
	if err != nil {
		return nil, err
	}
	tune(c)
	if config != nil {
		c = tls.Client(c, named(config, addr))
	}
	if err = greet(ctx, c, h); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// named gives a configuration without a server's name the one of the address.
func named(config *tls.Config, addr string) *tls.Config {
	if config.ServerName != "" || config.InsecureSkipVerify {
		return config
	}
	config = config.Clone()
	config.ServerName, _, _ = net.SplitHostPort(addr)
	return config
}

func greet(ctx context.Context, c net.Conn, h hello) error {
	_ = c.SetDeadline(time.Now().Add(answerTimeout))
	watch := ctxdial.InterruptBy(ctx, c.SetDeadline)
	err := writeGreeting(c, h)
	var r reply
	if err == nil {
		err = readGreeting(c, &r)
	}
	if watch.End() {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	if r.Removed {
		return errRemoved
	}
	if r.Refused != "" {
		return fmt.Errorf("%w: %s", errRefused, r.Refused)
	}
	return c.SetDeadline(time.Time{})
}

// welcome reads a greeting and answers it.
func (l *Links) welcome(c net.Conn) (h hello, err error) {
	_ = c.SetDeadline(time.Now().Add(greetTimeout))
	if err = readGreeting(c, &h); err != nil {
		return h, err
	}
	r := reply{Format: format, Level: l.config.Level}
	if refused := l.judge(h); refused != nil {
		r.Refused, r.Removed = refused.Error(), errors.Is(refused, errRemoved)
	}
	if err = writeGreeting(c, r); err == nil && r.Refused != "" {
		err = errors.New(r.Refused)
	}
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	return h, err
}

// judge says why a connection is refused.
func (l *Links) judge(h hello) error {
	switch {
	case h.Format < format:
		return fmt.Errorf("it speaks format %d, this member %d: upgrade it", h.Format, format)
	case h.Kind == kindRequest:
		return nil
	case h.Kind != kindMessages && h.Kind != kindSnapshot:
		return fmt.Errorf("%q is not known as a kind of connection", h.Kind)
	case string(h.Cluster) != string(l.config.Cluster[:]):
		return fmt.Errorf("it belongs to cluster %x, this member to %x", h.Cluster, l.config.Cluster)
	case h.To != l.config.Self:
		return fmt.Errorf("it is for member %x, and this is %x", h.To, l.config.Self)
	}
	if l.config.Handler.Gone(h.From) {
		return errRemoved
	}
	l.config.Handler.Level(h.From, h.Level)
	return nil
}

func writeGreeting(w io.Writer, v any) error {
	doc, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(doc))), doc...)) //nolint:gosec // small
	return err
}

// readGreeting reads a document; its texts come from another process and become printable.
func readGreeting(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxGreeting {
		return fmt.Errorf("a greeting of %d bytes: it is not a member of a cohort store", n)
	}
	doc := make([]byte, n)
	if _, err := io.ReadFull(r, doc); err != nil {
		return err
	}
	return printable.Unmarshal(doc, v)
}

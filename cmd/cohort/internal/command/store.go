// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// DefaultPort is the port that PyTorch's launchers use.
const DefaultPort = "29500"

// StoreFlags are the flags of every command that talks to a store.
type StoreFlags struct {
	Addr    string
	Timeout time.Duration
	Raw     bool
}

// Bind adds the flags to cmd.
func (f *StoreFlags) Bind(a *App, cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Addr, "addr", "",
		`address of the store, HOST:PORT (default: MASTER_ADDR and MASTER_PORT, else 127.0.0.1:29500)`)
	cmd.Flags().DurationVar(&f.Timeout, "timeout", 10*time.Second, "how long to connect and wait, in total")
	cmd.Flags().BoolVar(&f.Raw, "raw", false, `take keys as they are on the wire, without adding "/"`)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if f.Timeout <= 0 {
			return Usage(fmt.Errorf("--timeout %s: it must be more than zero", f.Timeout))
		}
		addr, err := StoreAddr(f.Addr, a.Getenv)
		f.Addr = addr
		return err
	}
}

// StoreAddr completes an address: the port may be left out, and without any address the environment of a job decides.
func StoreAddr(addr string, getenv func(string) string) (string, error) {
	if addr == "" {
		host, port := getenv("MASTER_ADDR"), getenv("MASTER_PORT")
		if host == "" {
			host = "127.0.0.1"
		}
		if port == "" {
			port = DefaultPort
		}
		return net.JoinHostPort(host, port), nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		var bad *net.AddrError
		if errors.As(err, &bad) && bad.Err == "missing port in address" {
			return net.JoinHostPort(strings.Trim(addr, "[]"), DefaultPort), nil
		}
		return "", Usage(fmt.Errorf("--addr %s: %w; write HOST:PORT, an IPv6 host in brackets", addr, err))
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// connectQuietTime is how long a command connects before it prints a message, and connectNoticeInterval how often it prints one after that.
const (
	connectQuietTime      = time.Second
	connectNoticeInterval = 10 * time.Second
)

// DialStore connects. A long wait is reported on standard error, because nothing else would show it.
func (a *App) DialStore(ctx context.Context, addr string, opts ...tcpstore.ClientOption) (*tcpstore.Client, error) {
	done, reported := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(reported)
		a.reportConnecting(addr, done)
	}()
	client, err := tcpstore.Dial(ctx, addr, opts...)
	close(done)
	<-reported
	if err != nil && !errors.Is(err, cohort.InvalidArgument) {
		err = markUnreachable(err)
	}
	return client, err
}

// reportConnecting prints now and then that the store does not answer yet, until done is closed.
func (a *App) reportConnecting(addr string, done <-chan struct{}) {
	start := time.Now()
	timer := time.NewTimer(connectQuietTime)
	defer timer.Stop()
	for {
		select {
		case <-done:
			return
		case <-timer.C:
		}
		waited := time.Since(start).Round(time.Second)
		if a.JSON {
			_ = WriteJSON(a.Err, "connecting", map[string]any{"addr": addr, "waited_s": waited.Seconds()})
		} else {
			_, _ = fmt.Fprintf(a.Err, "cohort: no store answers at %s after %s; still trying\n", addr, waited)
		}
		timer.Reset(connectNoticeInterval)
	}
}

// WithStore connects, runs f and closes, all within the timeout.
func (f *StoreFlags) WithStore(ctx context.Context, a *App, run func(ctx context.Context, s *tcpstore.Client) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, f.Timeout, timeUpError(f.Timeout))
	defer cancel()
	opts := []tcpstore.ClientOption{tcpstore.WithTimeout(f.Timeout)}
	if f.Raw {
		opts = append(opts, tcpstore.WithRawKeys())
	}
	client, err := a.DialStore(ctx, f.Addr, opts...)
	if err != nil {
		return Explain(ctx, err)
	}
	err = run(ctx, client)
	if closing := client.Close(); err == nil && !errors.Is(closing, cohort.Closed) {
		err = closing
	}
	return Explain(ctx, err)
}

// timeUpError is the end of a command by --timeout.
type timeUpError time.Duration

func (t timeUpError) Error() string {
	return fmt.Sprintf("not within %s; --timeout gives it more", time.Duration(t))
}

// Is makes it a context.DeadlineExceeded.
func (t timeUpError) Is(target error) bool { return target == context.DeadlineExceeded }

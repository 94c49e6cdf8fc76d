// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// defaultPort is the port that PyTorch's launchers use.
const defaultPort = "29500"

// storeFlags are the flags of every command that talks to a store.
type storeFlags struct {
	addr    string
	timeout time.Duration
	raw     bool
}

func (a *app) storeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Serve a store, or look into one and change it",
		Long: strings.TrimSpace(`
Commands for the store through which the processes of a job find each other. They
work on cohort's store and on the TCPStore of PyTorch 1.13 and 2.x, whose version
is found out.

Keys are written as in Python: store.set("epoch", "3") is the key epoch. On the
wire PyTorch puts "/" in front of it; --raw takes and shows keys as they are there,
which also reaches "init/", the counter of the workers that joined. Process groups
prefix their keys: "cohort store keys" shows them.`),
		Example: strings.Trim(`
  cohort store serve --addr 0.0.0.0:29500 --http 127.0.0.1:9090
  cohort store set --addr node0:29500 epoch 3
  cohort store wait --timeout 1m ready/0 ready/1
  cohort store top`, "\n"),
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.serveCommand(), a.getCommand(), a.setCommand(), a.addCommand(), a.casCommand(), a.appendCommand(),
		a.waitCommand(), a.deleteCommand(), a.keysCommand(), a.clearCommand(), a.topCommand())
	return cmd
}

// bind adds the flags to cmd.
func (f *storeFlags) bind(a *app, cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.addr, "addr", "", `address of the store, HOST:PORT (default: MASTER_ADDR and MASTER_PORT, else 127.0.0.1:29500)`)
	cmd.Flags().DurationVar(&f.timeout, "timeout", 10*time.Second, "how long to connect and wait, all in all")
	cmd.Flags().BoolVar(&f.raw, "raw", false, `take keys as they are on the wire, without adding "/"`)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if f.timeout <= 0 {
			return &usageError{fmt.Errorf("--timeout %s: it must be more than zero", f.timeout)}
		}
		addr, err := storeAddr(f.addr, a.Getenv)
		f.addr = addr
		return err
	}
}

// storeOp completes a command that does one thing with a store: it adds the flags, connects, and has run do the thing.
func (a *app) storeOp(cmd *cobra.Command, run func(ctx context.Context, s *tcpstore.Client, args []string) error) *cobra.Command {
	var flags storeFlags
	flags.bind(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return flags.withStore(cmd.Context(), a, func(ctx context.Context, s *tcpstore.Client) error { return run(ctx, s, args) })
	}
	return cmd
}

// storeAddr completes an address: the port may be left out, and without any address the environment of a job decides.
func storeAddr(addr string, getenv func(string) string) (string, error) {
	if addr == "" {
		host, port := getenv("MASTER_ADDR"), getenv("MASTER_PORT")
		if host == "" {
			host = "127.0.0.1"
		}
		if port == "" {
			port = defaultPort
		}
		return net.JoinHostPort(host, port), nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		var bad *net.AddrError
		if errors.As(err, &bad) && bad.Err == "missing port in address" {
			return net.JoinHostPort(strings.Trim(addr, "[]"), defaultPort), nil
		}
		return "", &usageError{fmt.Errorf("--addr %s: %w; write HOST:PORT, an IPv6 host in brackets", addr, err)}
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// connectPatience is how long a command connects in silence, and connectNews how often it says after that that it still does.
const (
	connectPatience = time.Second
	connectNews     = 10 * time.Second
)

// dialStore connects. What takes long is told on standard error, because nothing else would show.
func (a *app) dialStore(ctx context.Context, addr string, opts ...tcpstore.ClientOption) (*tcpstore.Client, error) {
	done, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		a.tellConnecting(addr, done)
	}()
	client, err := tcpstore.Dial(ctx, addr, opts...)
	close(done)
	<-told
	if err != nil && !errors.Is(err, dist.InvalidArgument) {
		err = &unreachableError{err}
	}
	return client, err
}

// tellConnecting says now and then that the store does not answer yet, until done.
func (a *app) tellConnecting(addr string, done <-chan struct{}) {
	start := time.Now()
	timer := time.NewTimer(connectPatience)
	defer timer.Stop()
	for {
		select {
		case <-done:
			return
		case <-timer.C:
		}
		waited := time.Since(start).Round(time.Second)
		if a.json {
			_ = json.NewEncoder(a.Err).Encode(map[string]any{"event": "connecting", "addr": addr, "waited_ms": waited.Milliseconds()})
		} else {
			_, _ = fmt.Fprintf(a.Err, "cohort: no store answers at %s after %s; still trying\n", addr, waited)
		}
		timer.Reset(connectNews)
	}
}

// withStore connects, runs f and closes, all within the timeout.
func (f *storeFlags) withStore(ctx context.Context, a *app, run func(ctx context.Context, s *tcpstore.Client) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout, timeUpError(f.timeout))
	defer cancel()
	opts := []tcpstore.ClientOption{tcpstore.WithTimeout(f.timeout)}
	if f.raw {
		opts = append(opts, tcpstore.WithRawKeys())
	}
	client, err := a.dialStore(ctx, f.addr, opts...)
	if err != nil {
		return explain(ctx, err)
	}
	err = run(ctx, client)
	if closing := client.Close(); err == nil && !errors.Is(closing, dist.Closed) {
		err = closing
	}
	return explain(ctx, err)
}

// timeUpError is the end of a command by --timeout.
type timeUpError time.Duration

func (t timeUpError) Error() string {
	return fmt.Sprintf("not within %s; --timeout gives it more", time.Duration(t))
}

func (t timeUpError) Is(target error) bool { return target == context.DeadlineExceeded }

// explain replaces the end of a context by what ended it, so that a signal is not called a timeout.
func explain(ctx context.Context, err error) error {
	var by signalError
	if err != nil && errors.As(context.Cause(ctx), &by) {
		return fmt.Errorf("interrupted by %w", by)
	}
	return err
}

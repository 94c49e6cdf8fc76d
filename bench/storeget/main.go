// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Command storeget measures cohort's store client: latency and throughput of get, set and add at 1, 8 and 64 goroutines.
//
//	storeget [-addr HOST:PORT] [-dur 1s] [-goroutines 1,8,64] [-own] [-prefix client] [-peer cohort]
//
// Without -addr it starts cohort's server in a separate process. It prints one JSON object per value, as all programs
// of the benchmark do; README.md explains how it is compared with PyTorch's C++ client. The rows "rtt" are the baseline: the
// round trip of as many bytes over a bare TCP connection, once with Go's poller and once with blocking system calls.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort/store/tcpstore"
)

type options struct {
	addr, prefix, peer, goroutines, ops, role, dialect string
	dur                                                time.Duration
	own                                                bool
}

func main() {
	var o options
	flag.StringVar(&o.addr, "addr", "", "store to measure; empty starts cohort's in a process of its own")
	flag.StringVar(&o.prefix, "prefix", "client", "first part of the case names; cpp puts the rows beside the C++ client's")
	flag.StringVar(&o.peer, "peer", "cohort", "name of this implementation in the rows")
	flag.StringVar(&o.goroutines, "goroutines", "1,8,64", "numbers of goroutines")
	flag.StringVar(&o.ops, "ops", "get,set,add,rtt", "what to measure")
	flag.StringVar(&o.dialect, "dialect", "auto", "auto, native, v or legacy")
	flag.DurationVar(&o.dur, "dur", time.Second, "time per case")
	flag.BoolVar(&o.own, "own", false, "one client per goroutine instead of one for all")
	flag.StringVar(&o.role, "role", "", "internal: server or echo")
	flag.Parse()
	if err := run(&o); err != nil {
		fmt.Fprintln(os.Stderr, "storeget:", err)
		os.Exit(1)
	}
}

func run(o *options) error {
	switch o.role {
	case "server":
		s, err := tcpstore.Listen("127.0.0.1:0")
		if err != nil {
			return err
		}
		fmt.Fprintln(os.Stdout, s.Addr())
		_, _ = io.Copy(io.Discard, os.Stdin)
		return s.Close()
	case "echo":
		return echo()
	}
	if o.addr == "" {
		addr, stop, err := child("server")
		if err != nil {
			return err
		}
		defer stop()
		o.addr = addr
	}
	for op := range strings.SplitSeq(o.ops, ",") {
		if op == "rtt" {
			if err := roundTrips(o); err != nil {
				return err
			}
			continue
		}
		for count := range strings.SplitSeq(o.goroutines, ",") {
			n, err := strconv.Atoi(count)
			if err != nil || n < 1 {
				return fmt.Errorf("-goroutines %q: want numbers from 1", o.goroutines)
			}
			if err := measure(o, op, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// child runs this program in another role and returns the address that it prints.
func child(role string) (addr string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(context.Background(), self, "-role", role) //nolint:gosec // this very program
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	cmd.Stderr = os.Stderr
	if err = cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("the %s process: %w", role, err)
	}
	return strings.TrimSpace(line), stop, nil
}

func (o *options) open() (*tcpstore.Client, error) {
	dialects := map[string]tcpstore.Dialect{
		"auto": tcpstore.DialectAuto, "native": tcpstore.DialectNative, "v": tcpstore.DialectV, "legacy": tcpstore.DialectLegacy,
	}
	d, ok := dialects[o.dialect]
	if !ok {
		return nil, fmt.Errorf("-dialect %q: want auto, native, v or legacy", o.dialect)
	}
	return tcpstore.Dial(context.Background(), o.addr, tcpstore.WithDialect(d), tcpstore.WithTimeout(10*time.Second))
}

func measure(o *options, op string, n int) error {
	ctx := context.Background()
	clients := make([]*tcpstore.Client, n)
	for i := range clients {
		if i > 0 && !o.own {
			clients[i] = clients[0]
			continue
		}
		c, err := o.open()
		if err != nil {
			return err
		}
		defer c.Close()
		clients[i] = c
	}
	value := []byte(strings.Repeat("x", 64))
	calls := make([]func() error, n)
	for i, c := range clients {
		key := "bench/key/" + strconv.Itoa(i)
		if err := c.Set(ctx, key, value); err != nil {
			return err
		}
		switch op {
		case "get":
			calls[i] = func() error { _, err := c.Get(ctx, key); return err }
		case "set":
			calls[i] = func() error { return c.Set(ctx, key, value) }
		case "add":
			calls[i] = func() error { _, err := c.Add(ctx, "bench/counter", 1); return err }
		default:
			return fmt.Errorf("-ops: %q is not known", op)
		}
	}
	took, all, err := drive(o.dur, calls)
	if err != nil {
		return err
	}
	o.print(fmt.Sprintf("%s.c%d", op, n), took, all)
	return nil
}

// drive calls each function over and over from a separate goroutine and returns every call's time.
func drive(dur time.Duration, calls []func() error) (time.Duration, []time.Duration, error) {
	times := make([][]time.Duration, len(calls))
	errs := make([]error, len(calls))
	start := time.Now()
	end := start.Add(dur)
	var group sync.WaitGroup
	for i, call := range calls {
		group.Go(func() {
			times[i] = make([]time.Duration, 0, 1<<16)
			for t := time.Now(); t.Before(end); {
				if errs[i] = call(); errs[i] != nil {
					return
				}
				now := time.Now()
				times[i] = append(times[i], now.Sub(t))
				t = now
			}
		})
	}
	group.Wait()
	took := time.Since(start)
	return took, slices.Concat(times...), errors.Join(errs...)
}

func (o *options) print(name string, took time.Duration, all []time.Duration) {
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	out := json.NewEncoder(os.Stdout)
	row := func(metric string, value float64, unit string) {
		_ = out.Encode(map[string]any{
			"group": "store", "case": o.prefix + "." + name + "." + metric, "peer": o.peer, "value": value, "unit": unit,
		})
	}
	row("ops", float64(len(all))/took.Seconds(), "op/s")
	row("p50", us(all[len(all)/2]), "us")
	row("p99", us(all[len(all)*99/100]), "us")
}

// What a Get of a 64-byte value under a short key sends and receives.
const requestBytes, replyBytes = 34, 81

// echo answers each request with a reply of the same sizes as a Get, by blocking system calls.
func echo() error {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // ends with the process
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			_ = blocking(conn, func(fd int) error {
				request, reply := make([]byte, requestBytes), make([]byte, replyBytes)
				for {
					if err := readFull(fd, request); err != nil {
						return err
					}
					if _, err := syscall.Write(fd, reply); err != nil {
						return err
					}
				}
			})
		}()
	}
}

// blocking runs use with the connection's descriptor in blocking mode, on a separate thread.
func blocking(conn net.Conn, use func(fd int) error) error {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return errors.New("not a TCP connection")
	}
	file, err := tcp.File()
	if err != nil {
		return err
	}
	defer file.Close()
	_ = conn.Close()
	fd := int(file.Fd()) // makes it blocking
	runtime.LockOSThread()
	return use(fd)
}

func readFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := syscall.Read(fd, b)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.EOF
		}
		b = b[n:]
	}
	return nil
}

// roundTrips measures the yardstick.
func roundTrips(o *options) error {
	addr, stop, err := child("echo")
	if err != nil {
		return err
	}
	defer stop()
	request, reply := make([]byte, requestBytes), make([]byte, replyBytes)
	conn, err := net.Dial("tcp", addr) //nolint:noctx // loopback
	if err != nil {
		return err
	}
	took, all, err := drive(o.dur, []func() error{func() error {
		if _, failed := conn.Write(request); failed != nil {
			return failed
		}
		_, failed := io.ReadFull(conn, reply)
		return failed
	}})
	if err != nil {
		return err
	}
	o.print("rtt.poller", took, all)
	_ = conn.Close()

	if conn, err = net.Dial("tcp", addr); err != nil { //nolint:noctx // loopback
		return err
	}
	failed := make(chan error, 1)
	go func() {
		failed <- blocking(conn, func(fd int) error {
			took, all, err = driveHere(o.dur, func() error {
				if _, failed := syscall.Write(fd, request); failed != nil {
					return failed
				}
				return readFull(fd, reply)
			})
			return err
		})
	}()
	if err := <-failed; err != nil {
		return err
	}
	o.print("rtt.blocking", took, all)
	return nil
}

// driveHere is drive on the calling goroutine.
func driveHere(dur time.Duration, call func() error) (time.Duration, []time.Duration, error) {
	start := time.Now()
	end := start.Add(dur)
	all := make([]time.Duration, 0, 1<<16)
	for t := start; t.Before(end); {
		if err := call(); err != nil {
			return 0, nil, err
		}
		now := time.Now()
		all = append(all, now.Sub(t))
		t = now
	}
	return time.Since(start), all, nil
}

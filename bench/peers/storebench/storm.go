package main

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// storm: n clients connect at once, add 1 to a counter, and wait on one key
// that the last arrival sets. Each failed attempt is retried until the budget ends.
func storm(addr, proto string, n, perClient int, budget time.Duration) {
	probe, err := dial(addr, proto, false) // fail at once without a listener
	if err != nil {
		fatal(err)
	}
	probe.c.Close()
	key := fmt.Sprintf("storm/%d", time.Now().UnixNano())
	var retries, failed atomic.Int64
	var mu sync.Mutex
	var conns []io.Closer
	var lastConn, lastArrive atomic.Int64
	keep := func(c io.Closer) { mu.Lock(); conns = append(conns, c); mu.Unlock() }
	maxStore := func(a *atomic.Int64, v int64) {
		for o := a.Load(); v > o && !a.CompareAndSwap(o, v); o = a.Load() {
		}
	}
	start := time.Now()
	deadline := start.Add(budget)
	var wg sync.WaitGroup
	for i := 0; i < n; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var c *client
			for c == nil {
				var err error
				if c, err = dial(addr, proto, false); err != nil {
					retries.Add(1)
					if time.Now().After(deadline) {
						failed.Add(1)
						return
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
			keep(c.c)
			if tc, ok := c.c.(*net.TCPConn); ok {
				_ = tc.SetDeadline(deadline)
			}
			for j := 1; j < perClient; j++ { // a 1.13 client opens a second, idle connection
				x, err := net.DialTimeout("tcp", addr, 60*time.Second)
				if err != nil {
					failed.Add(1)
					return
				}
				_ = x.(*net.TCPConn).SetLinger(0)
				keep(x)
			}
			maxStore(&lastConn, int64(time.Since(start)))
			v, err := c.add(key+"/n", 1)
			if err != nil {
				failed.Add(1)
				return
			}
			maxStore(&lastArrive, int64(time.Since(start)))
			if proto == "redis" {
				if v == int64(n) {
					c.begin()
					args := make([]any, n+2)
					args[0], args[1] = "RPUSH", key+"/go"
					for i := range args[2:] {
						args[i+2] = "1"
					}
					c.resp(args...)
					err = c.flush()
					if err == nil {
						_, err = c.readRESP()
					}
				}
				if err == nil {
					c.begin()
					c.resp("BLPOP", key+"/go", "0")
					if err = c.flush(); err == nil {
						_, err = c.readRESP()
					}
				}
			} else {
				if v == int64(n) {
					err = c.set(key+"/go", []byte("1"))
				}
				if err == nil {
					err = c.wait(key + "/go")
				}
			}
			if err != nil {
				failed.Add(1)
			}
		}()
	}
	wg.Wait()
	total := time.Since(start)
	pre := fmt.Sprintf("storm%d", n)
	if perClient > 1 {
		pre += fmt.Sprintf("x%d", perClient)
	}
	emit(pre+".total", total.Seconds()*1e3, "ms")
	emit(pre+".connected", float64(lastConn.Load())/1e6, "ms")
	emit(pre+".arrived", float64(lastArrive.Load())/1e6, "ms")
	emit(pre+".retries", float64(retries.Load()), "n")
	emit(pre+".failed", float64(failed.Load()), "n")
	for _, c := range conns {
		c.Close()
	}
}

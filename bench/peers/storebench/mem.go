package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

func rss(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		fatal(err)
	}
	for _, l := range strings.Split(string(b), "\n") {
		if f := strings.Fields(l); len(f) > 1 && f[0] == "VmRSS:" {
			v, _ := strconv.ParseFloat(f[1], 64)
			return v * 1024
		}
	}
	return 0
}

func mem(addr, proto string, pid, vsize int, counts string) {
	c, err := dial(addr, proto, false)
	if err != nil {
		fatal(err)
	}
	val := make([]byte, vsize)
	base := rss(pid)
	emit("mem.base", base/1e6, "MB")
	done := 0
	for _, s := range strings.Split(counts, ",") {
		n, err := strconv.Atoi(s)
		if err != nil {
			fatal(err)
		}
		for done < n {
			c.begin()
			k, key := 0, ""
			for ; k < 100 && done < n; k++ {
				key = fmt.Sprintf("default_pg/0/mem/key/%010d", done) // 31 bytes
				c.putSet(key, val)
				done++
			}
			if proto != "redis" {
				c.putKeys(c.op.check, key)
			}
			if err := c.flush(); err != nil {
				fatal(err)
			}
			if proto == "redis" {
				for ; k > 0; k-- {
					if _, err := c.readRESP(); err != nil {
						fatal(err)
					}
				}
			} else if _, err := c.one(); err != nil {
				fatal(err)
			}
		}
		r := rss(pid) - base
		emit(fmt.Sprintf("mem.%dkeys", n), r/1e6, "MB")
		emit(fmt.Sprintf("mem.%dkeys.perkey", n), r/float64(n), "B")
	}
}

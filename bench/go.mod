module github.com/cohort-dist/cohort/bench

go 1.26.0

require github.com/cohort-dist/cohort v0.1.0

require gonum.org/v1/gonum v0.17.0

require golang.org/x/sys v0.49.0 // indirect

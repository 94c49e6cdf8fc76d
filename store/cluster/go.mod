module github.com/cohort-dist/cohort/store/cluster

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/cohort-dist/cohort v0.1.0
	go.etcd.io/raft/v3 v3.7.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.49.0
	google.golang.org/protobuf v1.36.11
)

#!/usr/bin/env bash
# A real Apache Kafka for this machine: one node (KRaft), loopback only.
#
#   scripts/kafka.sh up [--fresh] [--secure]   start it; the last line is the bootstrap address
#   scripts/kafka.sh down                      end the broker that `up` started
#   scripts/kafka.sh status                    0 and the address if it answers, else 1
#
# --fresh: with empty data. --secure: also listen with SASL_PLAINTEXT at PORT+2, SASL_SSL at PORT+3 and SSL at PORT+4, for
# users "trial" with password "trial" and "reader" with "kept-quiet" (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512; made with the
# data) and for any unsigned token (OAUTHBEARER, algorithm "none"). The authority to trust is .kafka/PORT/ca.pem; the
# broker's certificate is for 127.0.0.1 alone. For tests only.
#
# Comes from $KAFKA_HOME, else Docker, else Maven (Java 17 or newer). PORT is $KAFKA_PORT (default 9092); PORT+1 is used too.
# Everything it keeps stands under .kafka/: libs-VERSION once, and PORT/{data,log,pid,server.properties} a broker.
set -euo pipefail

VERSION=4.1.2
PORT=${KAFKA_PORT:-9092}
SECURE=
START_LIMIT_S=120
STOP_LIMIT_S=30
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.kafka
STATE=$ROOT/$PORT
ADDRESS=127.0.0.1:$PORT

fail() { echo "kafka: $1" >&2; exit 1; }

# An ApiVersions request, and the answer to it: a listening port alone is no broker.
answers() {
    local reply
    reply=$({
        exec 3<>"/dev/tcp/127.0.0.1/$PORT"
        printf '\0\0\0\012\0\022\0\0\0\0\0\001\377\377' >&3
        IFS= read -r -t 3 -d '' <&3 || exit 1 # waits for the first byte, a zero: the length of an answer has a leading one
        dd bs=1 count=7 <&3 | od -An -tx1 -j3 | tr -d ' \n'
    } 2>/dev/null) || return 1
    [[ $reply == 00000001 ]]
}

# What `up` wrote: "java PID" or "docker CONTAINER". A pid counts only while it is still that broker.
running() {
    local how id
    read -r how id 2>/dev/null <"$STATE/pid" || return 1
    case $how in
        java) [[ $(ps -ww -o args= -p "$id" 2>/dev/null) == *"$STATE/server.properties"* ]] ;;
        docker) [[ $(docker inspect -f '{{.State.Running}}' "$id" 2>/dev/null) == true ]] ;;
    esac
}

java_command() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java major
    major=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p') || return 1
    [[ ${major:-0} -ge 17 ]] && echo "$java"
}

maven_libs() {
    local libs=$ROOT/libs-$VERSION
    [[ -d $libs ]] && return
    command -v mvn >/dev/null || return 1
    mkdir -p "$ROOT"
    cat >"$ROOT/pom.xml" <<EOF
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$VERSION</version></dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.3</version>
    </dependency>
  </dependencies>
</project>
EOF
    echo "kafka: fetching Apache Kafka $VERSION once (Maven, log in .kafka/mvn.log)"
    rm -rf "$libs.part"
    mvn -q -B -f "$ROOT/pom.xml" dependency:copy-dependencies -DoutputDirectory="$libs.part" >"$ROOT/mvn.log" 2>&1 </dev/null ||
        fail "Maven could not fetch org.apache.kafka:kafka_2.13:$VERSION; see $ROOT/mvn.log"
    mv "$libs.part" "$libs"
}

secure_listeners() { echo "SASL_PLAINTEXT://$1:$((PORT + 2)),SASL_SSL://$1:$((PORT + 3)),SSL://$1:$((PORT + 4))"; }

write_secure_listeners() {
    local modules=org.apache.kafka.common.security listener
    for listener in sasl_plaintext sasl_ssl; do
        # A session ends with its token: without a limit of its own the broker would never ask for a new one.
        cat <<EOF
listener.name.$listener.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.$listener.plain.sasl.jaas.config=$modules.plain.PlainLoginModule required user_trial="trial" user_reader="kept-quiet";
listener.name.$listener.scram-sha-256.sasl.jaas.config=$modules.scram.ScramLoginModule required;
listener.name.$listener.scram-sha-512.sasl.jaas.config=$modules.scram.ScramLoginModule required;
listener.name.$listener.oauthbearer.sasl.jaas.config=$modules.oauthbearer.OAuthBearerLoginModule required \\
unsecuredLoginStringClaim_sub="broker";
listener.name.$listener.oauthbearer.connections.max.reauth.ms=3600000
EOF
    done
    for listener in ssl sasl_ssl; do
        cat <<EOF
listener.name.$listener.ssl.keystore.type=PKCS12
listener.name.$listener.ssl.keystore.location=$STATE/tls.p12
listener.name.$listener.ssl.keystore.password=trial-keystore
EOF
    done
}

write_config() { # $1: the address to listen at
    mkdir -p "$STATE/data"
    cat >"$STATE/server.properties" <<EOF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((PORT + 1))
listeners=PLAINTEXT://$1:$PORT,CONTROLLER://127.0.0.1:$((PORT + 1))${SECURE:+,$(secure_listeners "$1")}
advertised.listeners=PLAINTEXT://$ADDRESS${SECURE:+,$(secure_listeners 127.0.0.1)}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL
log.dirs=$STATE/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
message.max.bytes=16777216
EOF
    [[ -z $SECURE ]] || write_secure_listeners >>"$STATE/server.properties"
    cat >"$STATE/log4j2.properties" <<EOF
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=OUT
appender.out.type=Console
appender.out.name=OUT
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c: %m%n
logger.started.name=kafka.server.KafkaRaftServer
logger.started.level=INFO
EOF
}

# The commands of a broker, for whichever java and jars there are.
broker() { # $1: java, $2: folder of jars
    local java="'$1' -cp '$2/*' -Dlog4j2.configurationFile='$STATE/log4j2.properties'" conf="'$STATE/server.properties'"
    local keytool="'${1%java}keytool' -keystore '$STATE/tls.p12' -storetype PKCS12 -storepass trial-keystore"
    local key="-genkeypair -keyalg EC -validity 3650" users= hash
    for hash in 256 512; do
        users+=" --add-scram 'SCRAM-SHA-$hash=[name=trial,password=trial]'"
        users+=" --add-scram 'SCRAM-SHA-$hash=[name=reader,password=kept-quiet]'"
    done
    [[ -f $STATE/data/meta.properties ]] ||
        echo "id=\$($java kafka.tools.StorageTool random-uuid) && $java kafka.tools.StorageTool format -t \"\$id\" -c $conf" \
            "$users &&"
    [[ -z $SECURE || -f $STATE/ca.pem ]] ||
        echo "$keytool $key -alias authority -dname CN=authority -ext bc:c -ext ku:c=keyCertSign &&" \
            "$keytool $key -alias broker -signer authority -dname CN=broker -ext san=ip:127.0.0.1 &&" \
            "$keytool -exportcert -alias authority -rfc -file '$STATE/ca.pem' && $keytool -delete -alias authority &&"
    echo "exec $java -Xms256m -Xmx512m -XX:+UseSerialGC kafka.Kafka $conf"
}

start_java() { # $1: java, $2: folder of jars
    write_config 127.0.0.1
    # Its own process group and no inherited output: a signal to the caller does not end it, and no caller waits for it.
    set -m
    nohup bash -c "$(broker "$1" "$2")" >"$STATE/log" 2>&1 </dev/null &
    echo "java $!" >"$STATE/pid"
    set +m
}

start_docker() {
    write_config 0.0.0.0
    local id
    id=$(docker run --rm -d --user "$(id -u):$(id -g)" -p "127.0.0.1:$PORT-$((PORT + 4)):$PORT-$((PORT + 4))" \
        -v "$STATE:$STATE" --entrypoint /bin/bash \
        "apache/kafka:$VERSION" -c "{ $(broker java /opt/kafka/libs); } >'$STATE/log' 2>&1")
    echo "docker $id" >"$STATE/pid"
}

start() {
    local java
    if java=$(java_command) && [[ -n ${KAFKA_HOME:-} ]]; then
        start_java "$java" "$KAFKA_HOME/libs"
    elif docker info >/dev/null 2>&1; then
        start_docker
    elif [[ -n $java ]] && maven_libs; then
        start_java "$java" "$ROOT/libs-$VERSION"
    else
        fail "install Java 17 or newer and Maven, or start Docker, or set KAFKA_HOME to an unpacked Apache Kafka 4"
    fi
}

up() {
    local option
    for option in "$@"; do
        case $option in
            --fresh)
                down >/dev/null
                rm -rf "$STATE"
                ;;
            --secure) SECURE=yes ;;
            *) fail "up $option: the options are --fresh and --secure" ;;
        esac
    done
    if ! running; then
        ! answers || fail "port $PORT belongs to a broker that this script did not start; choose another: KAFKA_PORT=19092"
        start
    fi
    local waited
    for ((waited = 0; waited < START_LIMIT_S * 5; waited++)); do
        # Requests are answered a moment before the controller admits the broker; topics can be made once it says so.
        if grep -q 'Kafka Server started' "$STATE/log" 2>/dev/null && answers; then
            echo "$ADDRESS"
            return
        fi
        ((waited < 10)) || running || fail "the broker ended while starting; see $STATE/log"
        sleep 0.2
    done
    fail "the broker did not answer at $ADDRESS within $START_LIMIT_S s; see $STATE/log"
}

down() {
    if ! running; then
        echo "kafka: not running at $ADDRESS"
        return
    fi
    local how id waited
    read -r how id <"$STATE/pid"
    if [[ $how == docker ]]; then
        docker stop -t "$STOP_LIMIT_S" "$id" >/dev/null
    else
        kill "$id"
        for ((waited = 0; waited < STOP_LIMIT_S * 5; waited++)); do
            running || break
            sleep 0.2
        done
        ! running || kill -9 "$id"
    fi
    rm -f "$STATE/pid"
    echo "kafka: stopped"
}

status() {
    running && answers || { echo "kafka: not running at $ADDRESS"; exit 1; }
    echo "$ADDRESS"
}

case ${1:-} in
    up) up "${@:2}" ;;
    down) down ;;
    status) status ;;
    *) fail "usage: scripts/kafka.sh up [--fresh] [--secure] | down | status" ;;
esac

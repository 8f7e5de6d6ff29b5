// The engine's side of Spark's UDF worker protocol: Spark's own dispatcher and session, from spark-udf-worker-core,
// over a minimal gRPC transport, which Spark 4.3 has not. Arguments: the specification's file, a folder for
// sockets, and a folder for each session with `init` and its batches `in-0`, `in-1`, ...; with a file `hold` it is
// closed when that file is gone, and its results are not read. They are written beside these: `out-0`, ..., `end`.
package org.apache.spark.udf.worker.engine

import java.io.{ByteArrayInputStream, File, InputStream}
import java.nio.file.{Files, Path, Paths}
import java.util.concurrent.{LinkedBlockingQueue, TimeUnit}

import scala.util.Try

import io.netty.channel.MultiThreadIoEventLoopGroup
import io.netty.channel.epoll.{EpollDomainSocketChannel, EpollIoHandler}
import io.netty.channel.unix.DomainSocketAddress
import org.apache.spark.udf.worker._
import org.apache.spark.udf.worker.core._
import org.apache.spark.udf.worker.core.WorkerSession.SessionState
import org.apache.spark.udf.worker.core.direct.DirectWorkerDispatcher
import org.sparkproject.connect.grpc.{CallOptions, ManagedChannel, MethodDescriptor}
import org.sparkproject.connect.grpc.netty.NettyChannelBuilder
import org.sparkproject.connect.grpc.stub.{ClientCalls, StreamObserver}
import org.sparkproject.connect.protobuf.ByteString

class Connection(path: String) extends UnixSocketWorkerConnection(path) {
  private val group = new MultiThreadIoEventLoopGroup(1, EpollIoHandler.newFactory())
  val channel: ManagedChannel = NettyChannelBuilder
    .forAddress(new DomainSocketAddress(path))
    .channelType(classOf[EpollDomainSocketChannel])
    .eventLoopGroup(group)
    .overrideAuthority("localhost")
    .usePlaintext()
    .build()

  override def isActive: Boolean = !channel.isShutdown

  override def close(): Unit = {
    channel.shutdownNow()
    group.shutdownGracefully(0, 1, TimeUnit.SECONDS)
    super.close()
  }
}

class Session(handle: WorkerHandle, channel: ManagedChannel)
    extends WorkerSession(handle, WorkerLogger.NoOp) {
  private val answers = new LinkedBlockingQueue[Either[Throwable, UdfResponse]]()
  private val requests = ClientCalls.asyncBidiStreamingCall(
    channel.newCall(Session.Execute, CallOptions.DEFAULT),
    new StreamObserver[UdfResponse] {
      override def onNext(answer: UdfResponse): Unit = answers.put(Right(answer))
      override def onError(error: Throwable): Unit = answers.put(Left(error))
      override def onCompleted(): Unit = answers.put(Left(new IllegalStateException("completed")))
    })

  private def send(control: UdfControlRequest.Builder): Unit =
    requests.onNext(UdfRequest.newBuilder().setControl(control).build())

  private def next(): UdfResponse = {
    val answer = answers.poll(60, TimeUnit.SECONDS)
    if (answer == null) throw new IllegalStateException("no answer")
    answer.fold(error => { completeTerminal(Termination.TransportFailed(error)); throw error }, identity)
  }

  override protected def doInit(init: Init): InitResponse = {
    send(UdfControlRequest.newBuilder().setInit(init))
    val answer = next().getControl.getInit
    if (!answer.hasError) compareAndSetState(SessionState.Initializing, SessionState.Initialized)
    answer
  }

  override protected def doProcess(input: Iterator[DataRequest], finish: () => Finish): Iterator[DataResponse] = {
    input.foreach(batch => requests.onNext(UdfRequest.newBuilder().setData(batch).build()))
    compareAndSetState(SessionState.Streaming, SessionState.Finishing)
    send(UdfControlRequest.newBuilder().setFinish(finish()))
    Iterator.continually(next()).takeWhile { answer =>
      if (answer.hasControl) {
        val control = answer.getControl
        if (control.hasFinish) completeTerminal(Termination.Finished(control.getFinish))
        if (control.hasError) throw new RuntimeException(control.getError.getError.toString)
      }
      answer.hasData
    }.map(_.getData)
  }

  override protected def doClose(cancel: () => Cancel): Termination = {
    if (!currentState.isTerminal) {
      send(UdfControlRequest.newBuilder().setCancel(cancel()))
      val last = Iterator.continually(next()).find(answer => answer.hasControl && answer.getControl.hasCancel)
      completeTerminal(Termination.Cancelled(last.get.getControl.getCancel))
    }
    requests.onCompleted()
    settledTermination
  }
}

object Session {
  private def marshaller[M](write: M => Array[Byte], read: InputStream => M): MethodDescriptor.Marshaller[M] =
    new MethodDescriptor.Marshaller[M] {
      override def stream(message: M): InputStream = new ByteArrayInputStream(write(message))
      override def parse(stream: InputStream): M = read(stream)
    }

  val Execute: MethodDescriptor[UdfRequest, UdfResponse] = MethodDescriptor
    .newBuilder(
      marshaller[UdfRequest](_.toByteArray, UdfRequest.parseFrom(_: InputStream)),
      marshaller[UdfResponse](_.toByteArray, UdfResponse.parseFrom(_: InputStream)))
    .setType(MethodDescriptor.MethodType.BIDI_STREAMING)
    .setFullMethodName("org.apache.spark.udf.worker.UdfWorker/Execute")
    .build()
}

class Dispatcher(spec: UDFWorkerSpecification, sockets: Path)
    extends DirectWorkerDispatcher(spec, WorkerLogger.NoOp) {
  override protected def newEndpointAddress(worker: String): String = sockets.resolve(worker.take(8)).toString
  override protected def waitForReady(address: String, process: Process, output: File): Unit = {
    val until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(initTimeoutMs)
    while (!Files.exists(Paths.get(address))) {
      if (!process.isAlive || System.nanoTime() > until) throw new IllegalStateException(readOutputTail(output))
      process.waitFor(20, TimeUnit.MILLISECONDS)
    }
  }
  override protected def cleanupEndpointAddress(address: String): Unit = Files.deleteIfExists(Paths.get(address))
  override protected def closeTransport(): Unit = ()
  override protected def validateTransportSupport(spec: UDFWorkerSpecification): Unit =
    require(spec.getDirect.getProperties.getConnection.hasUnixDomainSocket)
  override protected def newConnection(address: String): WorkerConnection = new Connection(address)
  override protected def newSession(handle: WorkerHandle, connection: WorkerConnection): WorkerSession =
    new Session(handle, connection.asInstanceOf[Connection].channel)
}

object Main {
  private def batches(folder: Path): Iterator[DataRequest] = Iterator
    .from(0)
    .map(number => folder.resolve(s"in-$number"))
    .takeWhile(Files.exists(_))
    .map(file => DataRequest.newBuilder().setData(ByteString.copyFrom(Files.readAllBytes(file))).build())

  private def run(session: WorkerSession, folder: Path): String = {
    val hold = folder.resolve("hold")
    val cancelled = Files.exists(hold)
    val end = Try {
      session.init(Init.parseFrom(Files.readAllBytes(folder.resolve("init"))))
      val results = session.process(batches(folder))
      if (cancelled) while (Files.exists(hold)) Thread.sleep(20)
      else results.zipWithIndex.foreach { case (batch, number) =>
        Files.write(folder.resolve(s"out-$number"), batch.getData.toByteArray)
      }
    }
    val termination = session.close()
    end.fold(error => s"$termination after $error", _ => termination.toString)
  }

  def main(arguments: Array[String]): Unit = {
    val spec = UDFWorkerSpecification.parseFrom(Files.readAllBytes(Paths.get(arguments(0))))
    val dispatcher = new Dispatcher(spec, Paths.get(arguments(1)))
    try {
      arguments.drop(2).map(Paths.get(_)).foreach { folder =>
        val end = run(dispatcher.createSession(None), folder)
        Files.writeString(folder.resolve("end"), end)
      }
    } finally dispatcher.close()
  }
}
